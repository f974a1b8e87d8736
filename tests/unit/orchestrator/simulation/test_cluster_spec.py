import pytest

from orchestrator.simulation.cluster_spec import parse


def shapes(text):
    return [(len(n.gpus), n.cpus, n.gpu_memory_bytes) for n in parse(text).nodes]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("gpus=1024", [(8, 128, None)] * 128),
        ("gpus=1_024", [(8, 128, None)] * 128),
        ("gpus=4", [(4, 64, None)]),
        ("gpus=12", [(8, 128, None), (4, 64, None)]),
        ("nodes=2", [(8, 128, None)] * 2),
        ("nodes=4, gpus=16", [(4, 64, None)] * 4),
        ("nodes=2,gpus_per_node=8,gpu_memory=80GB,cpus_per_node=96", [(8, 96, 80e9)] * 2),
        ("gpus=1,gpu_memory=80GiB", [(1, 16, 80 * 2.0**30)]),
        ("nodes=3,cpus_per_node=32", [(0, 32, None)] * 3),
        ("nodes=1,cpus_per_node=4 + gpus=2,gpu_memory=0.5tb", [(0, 4, None), (2, 32, 5e11)]),
    ],
)
def test_clusters_are_read(text, nodes):
    assert shapes(text) == nodes


def test_rate_of_a_gpu_may_be_written_with_a_plus():
    assert parse("gpus=8,gpu_flops=4e+14 + gpus=4").gpu_flops == 4e14
    assert parse("gpus=8").gpu_flops is None


def test_nodes_have_different_names_that_sort_in_their_order():
    names = [node.node_id for node in parse("gpus=1024").nodes]

    assert sorted(set(names)) == names


def test_description_counts_nodes_alike():
    text = str(parse("gpus=12,gpu_memory=80GB+nodes=1,cpus_per_node=1"))

    assert text == (
        "1 node of 8 GPUs (80 GB) and 128 cores and 1 node of 4 GPUs (80 GB) and 64 cores and 1 node of 1 core"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no cluster is described"),
        ("gpu=8", "gpu: no such key; did you mean gpus?"),
        ("colour=red", "colour: no such key; use nodes, gpus, gpus_per_node"),
        ("1024", "1024: no such key"),
        ("gpus", "gpus: needs a value, as gpus=8"),
        ("gpus=", "gpus: needs a value"),
        ("gpus=8,gpus=4", "gpus: given twice"),
        ("gpus=8,,nodes=1", "an empty item"),
        ("gpus=many", "gpus: must be a whole number from 0 to 1,000,000, got 'many'"),
        ("gpus=7.5", "got '7.5'"),
        ("gpus=-8", "got '-8'"),
        ("gpus=nan", "got 'nan'"),
        ("nodes=0", "nodes: must be a whole number from 1"),
        ("gpus=9999999", "to 1,000,000"),
        ("gpus=8,gpu_memory=80", "gpu_memory: must be a size with its unit, as 80GB or 80GiB, got '80'"),
        ("gpus=8,gpu_memory=0GB", "gpu_memory: must be a size"),
        ("gpus=8,gpu_flops=fast", "gpu_flops: must be a positive number, as 4e14, got 'fast'"),
        ("nodes=3,gpus=16", "16 GPUs do not divide evenly over 3 nodes"),
        ("nodes=2,gpus=16,gpus_per_node=4", "2 nodes of 4 GPUs are 8 GPUs, not 16"),
        ("cpus_per_node=8", "give nodes or gpus"),
        ("gpus=0", "gpus=0 needs nodes and cpus_per_node"),
        ("nodes=2,gpus=0", "cpus_per_node: nodes without GPUs need it"),
        ("gpus=8,gpu_flops=1e14+gpus=8,gpu_flops=2e14", "gpu_flops: groups of nodes must have the same"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_an_example_of_what_is_right(text, said):
    with pytest.raises(ValueError, match="for example gpus=1024") as caught:
        parse(text)

    assert said in str(caught.value)


def test_every_mistake_is_named_at_once():
    with pytest.raises(ValueError, match="gpu: no such key.*gpu_memory: must be a size"):
        parse("gpu=8,gpu_memory=80")
