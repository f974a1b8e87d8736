from orchestrator.control.terminal_text import printable_lines


def test_a_log_keeps_its_lines_and_loses_its_escapes():
    log = "a\tb\r\n10 %\r20 %\n\x1b]0;owned\x07ü\x9b31m\n\n"

    assert printable_lines(log) == "a\tb\n10 %\n20 %\n\\x1b]0;owned\\x07ü\\x9b31m\n\n"
