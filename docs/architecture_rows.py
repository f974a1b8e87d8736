"""Print the rows of the table in docs/architectures.md: counts of preset 10m of each architecture.

python docs/architecture_rows.py [NAME ...]
"""

import sys

from orchestrator.sweep import registry

VOCAB_SIZE, SEQ_LEN = 8192, 1024


def main(names: list[str]) -> None:
    for name in names or registry.architectures():
        module = registry.architecture(name)
        config = module.Config(**module.PRESETS["10m"])
        count = config.param_count(VOCAB_SIZE)
        cells = [
            shown(count.total),
            shown(config.active_param_count(VOCAB_SIZE)),
            shown(count.memory_values),
            shown(config.flops_per_token(VOCAB_SIZE, SEQ_LEN).total),
            shown(sum(config.bytes_per_token(VOCAB_SIZE).values())) + "B",
            shown(sum(config.bytes_per_token(VOCAB_SIZE, batch_tokens=64).values())) + "B",
        ]
        print(f"| [{name}](#{name}) | … | … | {' | '.join(cells)} |")


def shown(number: float) -> str:
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number:.3g}" if number else "0"


if __name__ == "__main__":
    main(sys.argv[1:])
