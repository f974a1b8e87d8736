"""Reads of table rows: counted as the kernels read them, in every architecture with tables."""

import csv
import io
from collections import Counter, defaultdict
from dataclasses import asdict

import numpy as np
import pytest
import torch

from orchestrator.sweep import registry
from workloads.evaluation import table_reads
from workloads.evaluation.read_statistics import read_statistics
from workloads.evaluation.table_reads import COUNTS, STATISTICS, TableReads, count_reads
from workloads.layers.memory import table as table_module
from workloads.layers.modules.init import initialise
from workloads.layers.modules.usage_stats import MemoryUsage, usage_by_label
from workloads.training.trained_model import TrainedModel

VOCAB_SIZE, CPU = 37, torch.device("cpu")
WINDOWS = np.random.default_rng(0).integers(0, VOCAB_SIZE, (5, 17))


def model_of(architecture, **fields):
    module = registry.architecture(architecture)
    config = module.Config(**{**module.PRESETS["d16"], **fields})
    model = config.build(VOCAB_SIZE)
    initialise(model, 0)
    return config, model.eval()


def reads_per_token(architecture, config):
    """Return the rows that one token reads in each layer that reads any, from the fields alone."""
    if architecture in ("memory", "memory_plus", "peer", "ultramem_v2"):
        return {config.n_memory_heads * config.knn}
    if architecture in ("engram", "ngram_input"):
        return {(config.max_order - 1) * config.n_hash_heads}
    if architecture in ("value_embeddings", "per_layer_embedding"):
        return {1}
    if architecture == "lookup_ffn":
        return set(config.tables_per_layer)
    if architecture == "memoryformer":
        return {config.query_key_value.n_chunks, config.first.n_chunks, config.second.n_chunks}
    return set()


@pytest.fixture
def read_by_kernels(monkeypatch):
    """Count what kernels are asked for, by the module with the usage that called them."""
    caller, found = [], defaultdict(lambda: defaultdict(Counter))

    def counting(name, ids_of):
        kernel = getattr(table_module, name)

        def counted(weight, *args, **kwargs):
            result = kernel(weight, *args, **kwargs)
            ids = ids_of(args, result)
            found[caller[-1]][weight.data_ptr()].update(ids.flatten().tolist())
            return result

        monkeypatch.setattr(table_module, name, counted)

    counting("weighted_bag", lambda args, result: args[0])
    counting("gathered_dot", lambda args, result: args[0])
    counting("gated_bag", lambda args, result: args[1])
    counting("hash_bag", lambda args, result: result[1])

    def watch(model):
        for path, module in model.named_modules():
            if isinstance(getattr(module, "usage", None), MemoryUsage):
                module.register_forward_pre_hook(lambda *_, path=path: caller.append(path))
        return found

    return watch


@pytest.mark.parametrize("architecture", registry.architectures())
def test_counts_are_what_the_kernels_read(architecture, read_by_kernels):
    config, model = model_of(architecture)
    found = read_by_kernels(model)
    counted = count_reads(model, WINDOWS, here=CPU)

    labels = {id(usage): label for label, usage in usage_by_label(model).items()}
    assert len(counted) == len(found)
    for path, tables in found.items():
        layer = counted[labels[id(model.get_submodule(path).usage)]]
        for by_kernels in tables.values():  # two tables are read by the same ids
            assert Counter(dict(enumerate(layer.reads.tolist()))) == by_kernels
        assert sum(layer.table_rows) == len(layer.reads)
        # Each of several tables is read equally often.
        assert len({int(reads.sum()) for _, reads in layer.tables()}) == 1
    totals = {int(layer.reads.sum()) for layer in counted.values()}
    assert totals == {WINDOWS.size * n for n in reads_per_token(architecture, config)}
    assert all(m.read_counts is None for m in model.modules() if isinstance(m, MemoryUsage))


def test_batches_add_up(monkeypatch):
    _, model = model_of("memory_plus")
    whole = count_reads(model, WINDOWS, here=CPU)
    monkeypatch.setattr(table_reads, "_BATCH_TOKENS", {"cpu": 2 * WINDOWS.shape[1]})
    done = []
    again = count_reads(model, WINDOWS, here=CPU, progress=done.append)

    assert done == [2, 4, 5]
    for label, layer in whole.items():
        assert np.array_equal(layer.reads, again[label].reads)


def trained(architecture, corpus):
    config, model = model_of(architecture)
    return TrainedModel(
        config=config,
        weights=dict(model.named_parameters()),
        tokenizer=None,
        vocab_size=VOCAB_SIZE,
        seq_len=16,
        step=7,
        corpus=corpus,
    )


class Corpus:
    """Held-out windows and nothing else."""

    def __init__(self, n):
        self.n = n

    def validation(self, *, seq_len):
        assert seq_len == 16
        return WINDOWS[: self.n]


def test_files_and_metrics_say_the_same():
    record = TableReads().measure(trained("memoryformer", Corpus(5)), precision="fp32")

    lines = list(csv.DictReader(io.StringIO(record["files"][STATISTICS].decode())))
    counts = np.load(io.BytesIO(record["files"][COUNTS]))
    for line in lines:
        first, n = int(line["first_row"]), int(line["rows"])
        reads = counts[line["layer"]][first : first + n]
        # A chunk has a table of its own, of which a token reads one row.
        assert int(line["reads"]) == reads.sum() == 5 * 16
        expected = asdict(read_statistics(reads))
        assert {name: float(line[name]) for name in expected} == expected
    for name in ("rows_read", "normalised_entropy", "kl_to_uniform", "gini"):
        mean = np.mean([float(line[name]) for line in lines])
        assert record["metrics"][f"eval/table_reads/{name}"] == pytest.approx(mean)
    assert (record["step"], record["tasks"]["table_reads"]["n"]) == (7, 80)


def test_without_tables_nothing_is_measured_and_without_text_it_is_an_error():
    record = TableReads().measure(trained("dense", Corpus(5)), precision="fp32")
    assert (record["metrics"], record["tasks"], record["files"]) == ({}, {}, {})
    for corpus in (None, Corpus(0)):
        with pytest.raises(ValueError, match="no held-out text"):
            TableReads().measure(trained("memory", corpus), precision="fp32")
