"""Command line to request."""

import pytest

from orchestrator.launchers.slurm.options import (
    SlurmOptions,
    parse_minutes,
    parse_nodes,
    parse_options,
)


@pytest.mark.parametrize(("text", "nodes"), [("1:8", (1, 8)), ("4", (4, 4)), (" 2:2 ", (2, 2))])
def test_nodes(text, nodes):
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize("text", ["0", "8:1", "0:3", "1-8", "one", "", "1:2:3"])
def test_nodes_that_are_none(text):
    with pytest.raises(ValueError, match="must"):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("text", "minutes"),
    # The formats that sbatch(1) lists for --time.
    [
        ("90", 90),
        ("30:00", 30),
        ("30:01", 31),
        ("4:00:00", 240),
        ("2-12", 3600),
        ("2-12:30", 3630),
        ("2-12:30:30", 3631),
        ("0:30", 1),
    ],
)
def test_times(text, minutes):
    assert parse_minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "0", "0:00", "1h", "-5", "1-", "1:2:3:4"])
def test_times_that_are_none(text):
    with pytest.raises(ValueError, match="must be"):
        parse_minutes(text)


def test_options():
    assert parse_options(["account=me", "--mail_type=END,FAIL", "hold", "comment=a=b"]) == {
        "account": "me",
        "mail-type": "END,FAIL",
        "hold": "",
        "comment": "a=b",
    }


@pytest.mark.parametrize("text", ["", "=x", "a b=c", "Account=me", "x;rm=1", "a\nb=c"])
def test_options_that_are_none(text):
    with pytest.raises(ValueError, match="KEY=VALUE"):
        parse_options([text])


def test_a_value_cannot_become_a_line_of_the_script():
    with pytest.raises(ValueError, match="comment must be one line"):
        parse_options(["comment=a\nrm -rf x"])


@pytest.mark.parametrize("text", ["nodes=3", "array=0-3", "open_mode=truncate", "time=5"])
def test_options_that_have_their_own_place(text):
    with pytest.raises(ValueError, match="set by memscale; use"):
        parse_options([text])


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("gpus-per-node=2", "use --gpus; with slurm-direct resources.gpus"),
        ("cpus_per_task=2", "use --cpus; with slurm-direct resources.cpus"),
        ("job-name=mine", "use comment="),
        ("gres=gpu:1", "write gres=gpu:TYPE for a type alone"),
        ("gres=gpu", "for the number use --gpus"),
        ("gres=nvme:1,gpu:a100:4", "for the number use --gpus"),
    ],
)
def test_what_trials_ask_for_is_not_replaced(text, instead):
    with pytest.raises(ValueError, match=instead):
        parse_options([text])


def test_a_type_of_gpu_and_other_resources_may_be_asked_for():
    assert parse_options(["gres=gpu:a100,lscratch:20"]) == {"gres": "gpu:a100,lscratch:20"}


@pytest.mark.parametrize(
    ("gres", "name"),
    [
        ("gpu:a100,lscratch:20", "a100"),
        ("nvme:1, gpu:1g.10gb ", "1g.10gb"),
        ("lscratch:20", None),
        ("", None),
    ],
)
def test_the_type_of_gpu_that_is_asked_for(gres, name):
    assert SlurmOptions(backend="slurm", options={"gres": gres}).gpu_type == name


def test_a_request_survives_json():
    request = SlurmOptions(backend="slurm", min_nodes=1, max_nodes=8, options={"account": "me"})
    assert SlurmOptions.from_json(request.to_json()) == request


def test_short_allocations_get_shorter_notice():
    assert SlurmOptions(backend="slurm", minutes=1).notice_s == 15
    assert SlurmOptions(backend="slurm", minutes=600).notice_s == 150
