import gzip
import json
import sys

import pytest

from workloads.data.readers.documents import PLAIN_DOCUMENT_CHARS, documents, expand
from workloads.data.readers.problems import DataError, Problems


def read(*paths, text_field="text"):
    problems = Problems()
    texts = list(documents(paths, text_field=text_field, problems=problems))
    problems.raise_if_any()
    return texts


def mistakes(path, **kwargs):
    with pytest.raises(DataError) as caught:
        read(path, **kwargs)
    return [text.removeprefix(str(path)) for text in caught.value.problems]


def test_json_lines_plain_or_zipped(tmp_path):
    texts = ["a\nb", "ü\u2028x"]
    content = "".join(json.dumps({"id": 1, "text": t}, ensure_ascii=False) + "\n" for t in texts)
    plain, zipped = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_text(content)
    zipped.write_bytes(gzip.compress((content + '\n{"text": " "}\n').encode()))
    assert read(plain, zipped) == texts * 2


def test_json_lines_that_are_named_as_text_are_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text('\n {"id": 1, "text": "x"}\n{"id": 2, "text": "y"}\n')
    message = ":2: is JSON with the field 'text', and is read as plain text; name the file .jsonl"
    assert mistakes(path) == [message]
    assert read(path, text_field="body")
    for content in ('{"text"', '["text"]', 'word\n{"text": "x"}'):
        path.write_text(content)
        assert read(path) == [content]


def test_every_wrong_json_line_is_reported(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text": "fine"}\n{"text": \n{"body": "x", "id": 3}\n{"text": 5}\n"x"\n{"text": "\xe9"}\n{}\n'
    )
    assert mistakes(path) == [
        ":2: is not JSON (Expecting value: line 1 column 10 (char 9)); "
        "write one JSON object per line",
        ":3: has no field 'text'; it has 'body', 'id'; set data.text_field (data prepare: --text-field)",
        ":4: text must be text, got int; correct it",
        ":5: holds a str; write one JSON object per line",
        ":6: byte 11 of the line is not UTF-8 (0xe9); convert the file, for example with "
        "iconv -f LATIN1 -t UTF-8",
        ":7: has no field 'text'; it has none; set data.text_field (data prepare: --text-field)",
    ]
    assert read_field(tmp_path, "body") == ["x"]


def read_field(folder, field):
    path = folder / "b.jsonl"
    path.write_text('{"body": "x"}\n')
    return read(path, text_field=field)


def test_deeply_nested_json_is_a_mistake_and_no_crash(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("[" * 100_000 + "\n")
    assert mistakes(path)[0].startswith(":1: is not JSON")


def test_plain_text_is_cut_at_blank_lines_and_loses_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    paragraphs = [f"{i} " + "word " * 100 for i in range(100)]
    path.write_text("\n\n".join(paragraphs) + "\n")
    texts = read(path)
    assert len(texts) > 5
    assert all(PLAIN_DOCUMENT_CHARS <= len(t) < 2 * PLAIN_DOCUMENT_CHARS for t in texts[:-1])
    assert "\n\n".join(texts) == "\n\n".join(paragraphs)


def test_plain_text_without_blank_lines_is_cut_at_line_ends(tmp_path):
    path = tmp_path / "a.log"
    lines = [f"line {i}" for i in range(30_000)]
    path.write_text("\n".join(lines))
    texts = read(path)
    assert max(map(len, texts)) <= 16 * PLAIN_DOCUMENT_CHARS + 20
    assert "\n".join(texts) == "\n".join(lines)


def test_parquet_columns(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": ["x", "", "y"]}), path)
    assert read(path, text_field="body") == ["x", "y"]
    assert mistakes(path) == [
        ": has no column 'text'; it has 'body'; set data.text_field (data prepare: --text-field)"
    ]
    parquet.write_table(pyarrow.table({"text": ["x", None]}), path)
    assert mistakes(path) == [":2: text must be text, got None; correct it"]
    path.write_bytes(b"PAR")
    assert "is not Parquet" in mistakes(path)[0]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"")
    assert mistakes(path) == [": needs pyarrow to be read; pip install 'memscale[data]'"]


def test_patterns_and_lists_become_files_in_order_without_repeats(tmp_path):
    for name in ("b.txt", "a.txt", "c[1].txt"):
        (tmp_path / name).write_text(name)
    b, a, odd = (tmp_path / name for name in ("b.txt", "a.txt", "c[1].txt"))
    assert expand(str(b)) == (b,)
    assert expand(str(tmp_path / "?.txt")) == (a, b)
    assert expand((str(b), str(tmp_path / "?.txt"))) == (b, a)
    assert expand(str(odd)) == (odd,)
    nothing = tmp_path / "*.jsonl"
    assert expand(str(nothing)) == (nothing,)


def test_half_a_character_is_a_mistake_with_its_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"text": "\\ud83d\\ude00"}\n{"text": "\\uD800"}\n{"\\udfff": 1, "text": "x"}\n'
    )
    assert mistakes(path) == [
        ":2: holds \\ud800, half a character; remove or replace it",
        ":3: holds \\udfff, half a character; remove or replace it",
    ]


def test_of_a_damaged_stream_the_lines_of_nonsense_are_not_reported(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    lines = "".join(json.dumps({"text": f"{i * i} rivers"}) + "\n" for i in range(3_000))
    whole = bytearray(gzip.compress(lines.encode()))
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    (only,) = mistakes(path)
    assert "damaged gzip stream" in only
    assert only.endswith("copy the file again")


def test_zstd_is_read_like_gzip_and_damage_is_one_sentence(tmp_path):
    import pyarrow

    whole = pyarrow.compress(b'{"text": "a"}\n{"text": "b"}\n' * 500, codec="zstd", asbytes=True)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(whole + whole)
    assert read(path) == ["a", "b"] * 1_000
    path.write_bytes(whole[:-9])
    assert mistakes(path)[0].startswith(":1: damaged zstd stream (")


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_plain_file_with_the_name_of_a_compressed_one_is_said_to_be(tmp_path, suffix):
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_text('{"text": "a"}\n')
    assert mistakes(path) == [": is not compressed; rename it to a.jsonl"]


def test_a_line_without_end_is_refused_before_it_fills_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("workloads.data.readers.lines.MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": "' + b"x" * (1 << 20) + b'"}\n')
    assert mistakes(path) == [
        ":2: the line is longer than 1 MiB; split the document, or write one document per line"
    ]
