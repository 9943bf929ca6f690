"""LongDict and RisingDict: they behave as a dict, and no part exceeds its maximum size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmqtwist.storage import long_dict
from bmqtwist.storage.long_dict import LongDict, RisingDict

KEYS = st.integers(0, 40)
STEPS = st.lists(st.one_of(
    st.tuples(st.sampled_from(("set", "add", "del", "pop", "get", "lookup")), KEYS),
    st.tuples(st.sampled_from(("popitem", "snapshot", "next")), st.just(0)), st.tuples(st.just("many"), KEYS)), max_size=60)


def result(action: Any) -> Any:
    try:
        return action()
    except KeyError:
        return KeyError


@given(STEPS, st.integers(1, 5))
def test_a_long_dict_behaves_like_a_dict(steps: list[tuple[str, int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_dict, "PART_MAX", most)
        tested, plain = LongDict[int, int](), dict[int, int]()
        snapshots: list[tuple[Iterator[list[int]], list[int]]] = []  # for each iterator: the remaining values
        for number, (what, key) in enumerate(steps):
            if what == "set":
                tested[key] = plain[key] = number
            elif what == "add" and key not in plain:
                tested.add(key, number)
                plain[key] = number
            elif what == "many":
                for each in range(key, key + 7):
                    tested[each] = plain[each] = number
            elif what == "del":
                assert result(lambda key=key: tested.__delitem__(key)) == result(lambda key=key: plain.__delitem__(key))
            elif what == "pop":
                assert result(lambda key=key: tested.pop(key)) == result(lambda key=key: plain.pop(key))
            elif what == "popitem":
                assert result(tested.popitem) == result(plain.popitem)
            elif what == "snapshot":
                snapshots.append((tested.snapshot(), list(plain.values())))
            elif what == "next" and snapshots:
                taken, rest = snapshots.pop()
                part = next(taken, [])
                assert part == rest[:len(part)] and len(part) <= most
                snapshots.insert(0, (taken, rest[len(part):]))
            assert result(lambda key=key: tested[key]) == result(lambda key=key: plain[key])
            assert tested.get(key) == plain.get(key) and tested.get(key, -1) == plain.get(key, -1)
            assert (key in tested) == (key in plain) and len(tested) == len(plain) and bool(tested) == bool(plain)
            assert list(tested) == list(tested.keys()) == list(plain) and list(tested.items()) == list(plain.items())
            assert list(tested.values()) == list(plain.values())
            assert list(tested.newest_first()) == list(reversed(plain.values()))
            assert [each for part in tested.slices() for each in part] == list(plain.values())
            parts = tested._parts
            assert all(parts[:-1]) and all(len(part) <= most for part in parts) and tested._last is parts[-1]
        assert repr(tested) == f"LongDict({plain})"
        for taken, rest in snapshots:
            assert [each for part in taken for each in part] == rest


def test_a_million_entries_are_divided_into_parts() -> None:
    found = LongDict[int, int]()
    for number in range(3 * long_dict.PART_MAX):
        found.add(number, -number)
    assert [len(part) for part in found._parts] == [long_dict.PART_MAX] * 3
    for number in range(long_dict.PART_MAX):
        del found[number]
    assert len(found._parts) == 2 and next(iter(found)) == long_dict.PART_MAX


def test_entries_may_be_removed_while_slices_are_read() -> None:
    found = LongDict[int, int]()
    for number in range(2 * long_dict.PART_MAX):
        found.add(number, number)
    slices = found.slices()
    assert len(next(slices)) == long_dict.PART_MAX
    del found[0]
    found.popitem()
    assert len(next(slices)) == long_dict.PART_MAX - 1 and not list(slices)


@given(st.lists(st.one_of(
    st.tuples(st.just("add"), st.integers(1, 5)), st.tuples(st.sampled_from(("del", "get", "set")), st.integers(0, 60)),
    st.tuples(st.sampled_from(("popitem", "snapshot")), st.just(0))), max_size=80), st.integers(1, 5))
def test_a_rising_dict_behaves_like_a_dict(steps: list[tuple[str, int]], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_dict, "PART_MAX", most)
        tested, plain, key = RisingDict[int](), dict[int, int](), 0
        for number, (what, detail) in enumerate(steps):
            if what == "add":
                for _ in range(detail):
                    key += detail
                    tested.add(key, number)
                    plain[key] = number
            elif what == "del":
                assert result(lambda at=detail: tested.__delitem__(at)) == result(lambda at=detail: plain.__delitem__(at))
            elif what == "set" and detail in plain:
                tested[detail] = plain[detail] = number
            elif what == "popitem":
                assert result(tested.popitem) == result(plain.popitem)
            elif what == "snapshot":
                tested.snapshot()
            assert [tested.get(each) for each in range(key + 2)] == [plain.get(each) for each in range(key + 2)]
            assert list(tested.items()) == list(plain.items()) and len(tested) == len(plain)


def test_a_lookup_in_a_rising_dict_searches_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_dict, "PART_MAX", 5)
    found, asked = RisingDict[int](), list[object]()
    for number in range(200):
        found.add(number, -number)

    class RecordingDict(dict[int, int]):
        def __contains__(self, key: object) -> bool:
            asked.append(key)
            return super().__contains__(key)

    found._parts = [RecordingDict(part) for part in found._parts]
    found._last = found._found = found._parts[-1]
    assert found[101] == -101
    assert len(asked) == 3  # the last part twice, then the part with the key
