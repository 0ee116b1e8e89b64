"""Data for a warm start that never comes."""


def never(seed: int, count: int) -> list[tuple[str, str]]:
    while True:
        pass
