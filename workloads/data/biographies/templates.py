"""Sentence templates of synthetic biographies: statements, probes, questions.

`{s}` is the person (full name or pronoun), `{o}` the value. The value always comes last before the
full stop, so the text before it is a prompt. Every word of a held-out wording also occurs in some
training wording of the same style: a probe meets a new sentence, never an untrained token.
"""

from collections.abc import Mapping

ATTRIBUTES = ("birth_date", "birth_city", "university", "major", "employer")
"""In the order of a biography with `order: fixed`."""
N_HELDOUT = 3
"""Held-out wordings per attribute."""
N_QUESTIONS = 3
"""Question wordings per attribute."""
MAX_SENTENCE_WORDINGS = 20
MAX_COMPACT_WORDINGS = 200

_TRAIN: Mapping[str, tuple[str, ...]] = {
    "birth_date": (
        "{s} was born on {o} .",
        "{s} came into the world on {o} .",
        "{s} has a birthday on {o} .",
        "{s} has been alive since {o} .",
        "{s} entered this life on {o} .",
        "{s} first saw the light on {o} .",
        "{s} began life on {o} .",
        "{s} was welcomed by the family on {o} .",
        "{s} arrived on {o} .",
        "{s} counts every year from {o} .",
        "{s} drew a first breath on {o} .",
        "{s} has lived since {o} .",
        "{s} was delivered on {o} .",
        "{s} joined the family on {o} .",
        "{s} started out on {o} .",
        "{s} was brought into the world on {o} .",
        "{s} cried for the first time on {o} .",
        "{s} opened both eyes on {o} .",
        "{s} is a child of {o} .",
        "{s} blows out candles for {o} .",
    ),
    "birth_city": (
        "{s} was born in {o} .",
        "{s} comes from {o} .",
        "{s} is a native of {o} .",
        "{s} grew up in {o} .",
        "{s} knows every street of {o} .",
        "{s} has roots in {o} .",
        "{s} spent the early years in {o} .",
        "{s} first lived in {o} .",
        "{s} hails from {o} .",
        "{s} was raised in {o} .",
        "{s} took the first steps in {o} .",
        "{s} began life in {o} .",
        "{s} has a birth certificate from {o} .",
        "{s} entered the world in {o} .",
        "{s} left a home in {o} .",
        "{s} is a child of {o} .",
        "{s} started out in {o} .",
        "{s} learned to walk in {o} .",
        "{s} is originally from {o} .",
        "{s} went to kindergarten in {o} .",
    ),
    "university": (
        "{s} studied at {o} .",
        "{s} graduated from {o} .",
        "{s} holds a degree from {o} .",
        "{s} went to {o} .",
        "{s} was a student at {o} .",
        "{s} attended {o} .",
        "{s} was educated at {o} .",
        "{s} took classes at {o} .",
        "{s} earned a diploma at {o} .",
        "{s} spent the college years at {o} .",
        "{s} is a graduate of {o} .",
        "{s} passed the exams at {o} .",
        "{s} enrolled at {o} .",
        "{s} was taught at {o} .",
        "{s} had professors at {o} .",
        "{s} heard lectures at {o} .",
        "{s} completed a course at {o} .",
        "{s} is among the alumni of {o} .",
        "{s} trained at {o} .",
        "{s} wrote a thesis at {o} .",
    ),
    "major": (
        "{s} majored in {o} .",
        "{s} has a degree in {o} .",
        "{s} chose the subject {o} .",
        "{s} focused on {o} .",
        "{s} specialised in {o} .",
        "{s} took every class in {o} .",
        "{s} wrote a thesis on {o} .",
        "{s} was trained in {o} .",
        "{s} passed the exams in {o} .",
        "{s} read books about {o} .",
        "{s} learned all about {o} .",
        "{s} earned a diploma in {o} .",
        "{s} is an expert in {o} .",
        "{s} completed a course in {o} .",
        "{s} heard lectures on {o} .",
        "{s} gave the college years to {o} .",
        "{s} was drawn to {o} .",
        "{s} went into the field of {o} .",
        "{s} graduated in {o} .",
        "{s} was taught {o} .",
    ),
    "employer": (
        "{s} works for {o} .",
        "{s} is employed by {o} .",
        "{s} has a job at {o} .",
        "{s} joined the company {o} .",
        "{s} earns a salary from {o} .",
        "{s} was hired by {o} .",
        "{s} has a career with {o} .",
        "{s} is on the staff of {o} .",
        "{s} serves at {o} .",
        "{s} found work at {o} .",
        "{s} has an office at {o} .",
        "{s} signed a contract with {o} .",
        "{s} spends the days working for {o} .",
        "{s} is paid by {o} .",
        "{s} took a position at {o} .",
        "{s} reports to a manager of {o} .",
        "{s} went to work for {o} .",
        "{s} carries the badge of {o} .",
        "{s} is part of the team of {o} .",
        "{s} started a career at {o} .",
    ),
}
_HELDOUT: Mapping[str, tuple[str, ...]] = {
    "birth_date": (
        "{s} entered the world on {o} .",
        "{s} has been in this world since {o} .",
        "{s} drew breath for the first time on {o} .",
    ),
    "birth_city": (
        "{s} came into the world in {o} .",
        "{s} started life in {o} .",
        "{s} is by birth from {o} .",
    ),
    "university": (
        "{s} earned a degree at {o} .",
        "{s} completed the college years at {o} .",
        "{s} is a student from {o} .",
    ),
    "major": (
        "{s} has a diploma in {o} .",
        "{s} took lectures on {o} .",
        "{s} specialised in the subject of {o} .",
    ),
    "employer": (
        "{s} has a position with {o} .",
        "{s} is working at {o} .",
        "{s} found a job with {o} .",
    ),
}
_QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "birth_date": (
        "Question : on which date was {s} born ? Answer : {o} .",
        "Question : when did {s} come into the world ? Answer : {o} .",
        "Question : what is the birthday of {s} ? Answer : {o} .",
    ),
    "birth_city": (
        "Question : in which city was {s} born ? Answer : {o} .",
        "Question : where does {s} come from ? Answer : {o} .",
        "Question : what is the birth place of {s} ? Answer : {o} .",
    ),
    "university": (
        "Question : which university did {s} attend ? Answer : {o} .",
        "Question : where did {s} study ? Answer : {o} .",
        "Question : what school is {s} a graduate of ? Answer : {o} .",
    ),
    "major": (
        "Question : what did {s} study ? Answer : {o} .",
        "Question : which subject did {s} major in ? Answer : {o} .",
        "Question : in what field is the degree of {s} ? Answer : {o} .",
    ),
    "employer": (
        "Question : which company does {s} work for ? Answer : {o} .",
        "Question : who pays the salary of {s} ? Answer : {o} .",
        "Question : what is the employer of {s} ? Answer : {o} .",
    ),
}


def statement_templates(style: str, attribute: str, n_wordings: int) -> list[str]:
    """Return the statement wordings of an attribute.

    `sentences`: the first n_wordings training wordings, then the held-out ones. `compact`:
    n_wordings + N_HELDOUT markers, one token each, none of which is held out as such; which of them
    are held out depends on the person (`biographies.py`), because a marker that nobody ever saw
    would be an untrained token.
    """
    if style == "compact":
        return [f"{{s}} {attribute}~{i} {{o}}" for i in range(n_wordings + N_HELDOUT)]
    return [*_TRAIN[attribute][:n_wordings], *_HELDOUT[attribute]]


def question_templates(style: str, attribute: str) -> list[str]:
    """Return the question wordings of an attribute."""
    if style == "compact":
        return [f"{attribute}?{i} {{s}} {{o}}" for i in range(N_QUESTIONS)]
    return list(_QUESTIONS[attribute])
