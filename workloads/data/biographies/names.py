"""Invented names for synthetic biographies.

People, cities, universities, majors, employers, dates.

Every entry is one token of a word-level vocabulary. Names are put together from the syllables
below, so they read like names and belong to nobody. Entry i of a pool does not depend on the pool's
size: a smaller pool is a prefix of a larger one.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice

MAX_POOL = 3_500
"""Largest pool that every kind of name can fill with distinct words."""
DAYS_PER_MONTH = 28
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
FIRST_YEAR = 1900

_STARTS = (
    *("Al", "Bel", "Cor", "Dar", "El", "Fen", "Gar", "Hal", "Il", "Jor", "Kel", "Lor", "Mar"),
    *("Nor", "Or", "Per", "Quin", "Ros", "Sel", "Tam", "Ul", "Vor", "Wil", "Yar", "Zel"),
)
_MIDDLES = (
    *("a", "e", "i", "o", "u", "ade", "eri", "ilo", "ona", "uri", "ami", "eno", "iva"),
    *("ola", "umi", "are", "eto", "isa", "odi", "ule"),
)
_FIRST_ENDS = ("n", "ra", "s", "la", "nna", "vin", "rik", "tta", "mir", "zia", "bel", "don", "x")
_MIDDLE_ENDS = ("th", "lyn", "rd", "line", "ck", "sse", "wyn", "ford", "jan", "mund", "qua", "lene")
_LAST_ENDS = ("son", "ley", "man", "berg", "sky", "well", "wood", "shaw", "ström", "ez", "ardi")
_CITY_ENDS = (
    "ville",
    "town",
    "burgh",
    "port",
    "field",
    "haven",
    "bridge",
    "mouth",
    "stad",
    "minster",
)
_SCHOOL_FORMS = (
    *("University of {}", "{} College", "{} Institute", "{} State University"),
    *("{} Academy", "{} Polytechnic", "{} School of Arts", "Royal {} University"),
)
_EMPLOYER_FORMS = (
    *("{} Systems", "{} Foods", "{} Motors", "{} Bank", "{} Health", "{} Energy", "{} Press"),
    *("{} Airlines", "{} Labs", "{} Partners"),
)
_FIELDS = (
    *("Biology", "Chemistry", "Physics", "Mathematics", "Statistics", "Economics", "History"),
    *("Philosophy", "Linguistics", "Geology", "Astronomy", "Sociology", "Psychology", "Law"),
    *("Medicine", "Nursing", "Architecture", "Music", "Theatre", "Journalism", "Education"),
    *("Agriculture", "Forestry", "Engineering", "Computing", "Robotics", "Finance", "Marketing"),
    *("Accounting", "Anthropology", "Archaeology", "Geography", "Ecology", "Design", "Literature"),
)
_MODIFIERS = (
    *("", "Applied", "Theoretical", "Industrial", "Marine", "Urban", "Rural", "Ancient", "Modern"),
    *("Comparative", "Public", "Social", "Digital", "Clinical", "Environmental", "Global"),
    *("Experimental", "Quantitative", "Historical", "Medical", "Political", "Cultural", "Northern"),
    *("Southern", "Eastern", "Western", "Nautical", "Polar", "Tropical", "Alpine", "Coastal"),
    *("Cognitive", "Civil", "Military", "Formal", "General", "Advanced", "Practical", "Classical"),
    *("Medieval", "Colonial", "Domestic", "Foreign", "Regional", "Municipal", "Rational", "Visual"),
    *("Oral", "Written", "Synthetic", "Organic", "Structural", "Molecular", "Stellar", "Planetary"),
    *("Sacred", "Secular", "Creative", "Critical", "Dynamic", "Static", "Linear", "Numerical"),
    *("Financial", "Legal", "Ethical", "Spatial", "Temporal", "Acoustic", "Optical", "Thermal"),
    *("Nuclear", "Electric", "Magnetic", "Chemical", "Biological", "Genetic", "Aquatic", "Aerial"),
    *(
        "Digestive",
        "Neural",
        "Vascular",
        "Botanical",
        "Zoological",
        "Mineral",
        "Maritime",
        "Desert",
    ),
    *("Arctic", "Insular", "Continental", "Atlantic", "Pacific", "Baltic", "Nordic", "Iberian"),
    *("Balkan", "Andean", "Saharan", "Siberian", "Caribbean", "Mediterranean", "Himalayan"),
    *("Scandinavian", "Polynesian", "Caspian", "Danubian", "Rhenish", "Hanseatic"),
)


def first_names(n: int) -> list[str]:
    """Return n distinct first names."""
    return _take("first names", _coined(_FIRST_ENDS), n)


def middle_names(n: int) -> list[str]:
    """Return n distinct middle names, none of them a first name."""
    return _take("middle names", _coined(_MIDDLE_ENDS), n)


def last_names(n: int) -> list[str]:
    """Return n distinct family names."""
    return _take("last names", _coined(_LAST_ENDS), n)


def cities(n: int) -> list[str]:
    """Return n distinct city names."""
    return _take("cities", _coined(_CITY_ENDS), n)


def universities(n: int) -> list[str]:
    """Return n distinct university names; each is one token although it has several words."""
    return _take("universities", _dressed(_SCHOOL_FORMS), n)


def employers(n: int) -> list[str]:
    """Return n distinct company names; each is one token although it has two words."""
    return _take("employers", _dressed(_EMPLOYER_FORMS), n)


def majors(n: int) -> list[str]:
    """Return n distinct subjects of study."""
    subjects = (f"{modifier} {field}".strip() for modifier in _MODIFIERS for field in _FIELDS)
    return _take("majors", subjects, n)


def years(n: int) -> list[str]:
    """Return n consecutive years of birth from 1900."""
    return [str(FIRST_YEAR + i) for i in range(n)]


def _take(kind: str, names: Iterable[str], n: int) -> list[str]:
    taken = list(islice(names, n))
    if len(taken) < n:
        raise ValueError(f"only {len(taken)} distinct {kind} can be made, got {n}; ask for fewer")
    return taken


@cache
def _coined(endings: tuple[str, ...]) -> tuple[str, ...]:
    """Return every start + middle + ending once, neighbours differing in all three parts.

    A step coprime to the number of combinations visits each exactly once.
    """
    n = len(_STARTS) * len(_MIDDLES) * len(endings)
    step = 7_919  # a prime that divides no product of the list lengths above
    words: dict[str, None] = {}
    for i in range(n):
        rest, start = divmod(i * step % n, len(_STARTS))
        ending, middle = divmod(rest, len(_MIDDLES))
        words.setdefault(_STARTS[start] + _MIDDLES[middle] + endings[ending])
    return tuple(words)


def _dressed(forms: Sequence[str]) -> Iterator[str]:
    """Yield each form around coined stems; a stem is used once, so one word is unique."""
    stems = _coined(("", "nd", "ve"))
    extra = _coined(("st", "rk", "lm", "nt", "sk"))
    for i, stem in enumerate((*stems, *extra)):
        yield forms[i % len(forms)].format(stem)
