import re

import pytest

from incseg.errors import InputError
from incseg.protocol import Protocol, Setting, class_order, steps


@pytest.mark.parametrize(
    ("task", "classes", "sizes"),
    [
        ("offline", 20, [20]),
        ("15-5", 20, [15, 5]),
        ("15-1", 20, [15, 1, 1, 1, 1, 1]),
        ("19-1", 20, [19, 1]),
        ("10-10", 20, [10, 10]),
        ("10-5", 20, [10, 5, 5]),
        ("5-3", 20, [5, 3, 3, 3, 3, 3]),
        ("4-4", 20, [4] * 5),
        ("2-2", 20, [2] * 10),
        ("2-1", 20, [2] + [1] * 18),
        ("100-10", 150, [100, 10, 10, 10, 10, 10]),
        ("100-5", 150, [100] + [5] * 10),
        ("50-50", 150, [50, 50, 50]),
        ("13-6", 19, [13, 6]),
        ("14-1", 19, [14, 1, 1, 1, 1, 1]),
        ("4-1-3", 8, [4, 1, 3]),
    ],
)
def test_a_task_cuts_the_classes_into_steps(task: str, classes: int, sizes: list[int]) -> None:
    found = steps(task, classes)
    assert [len(step.new) for step in found] == sizes
    assert [channel for step in found for channel in step.new] == list(range(1, classes + 1))
    for step in found:
        assert step.old + step.new + step.future == tuple(range(1, classes + 1))
        assert step.num_classes == 1 + len(step.old) + len(step.new)
    assert found[0].old_classes == 1
    assert found[-1].num_classes == classes + 1


@pytest.mark.parametrize("task", ["15-4", "20-1", "25-5", "0-5", "15", "x-1", "15-", "-1", "10-5-4", "", "Offline",
                                  "+15-5", " 15-5", "15- 5", "1_5-5", "１５-5", "015-5", "15-5-"])  # fmt: skip
def test_a_task_that_does_not_fit_is_refused_by_name(task: str) -> None:
    with pytest.raises(InputError, match=re.escape(task or "''")):
        steps(task, 20)


def test_a_protocol_reads_back_as_written() -> None:
    assert str(Protocol.parse("voc/15-1/disjoint")) == "voc/15-1/disjoint"
    assert Protocol.parse("voc/15-1").setting is Setting.OVERLAPPED


@pytest.mark.parametrize("text", ["voc", "voc/15-5/overlapped/b", "voc//overlapped", "", "/15-5/disjoint"])
def test_what_is_no_protocol_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a protocol"):
        Protocol.parse(text)


def test_a_misspelt_setting_is_put_right() -> None:
    with pytest.raises(InputError, match="Did you mean 'disjoint'"):
        Protocol.parse("voc/15-5/disjoin")


def test_class_order_maps_channels_to_dataset_ids() -> None:
    classes = ("background", "cat", "dog", "cow")
    assert class_order(classes) == (0, 1, 2, 3)
    assert class_order(classes, ["cow", "cat", "dog"]) == (0, 3, 1, 2)


@pytest.mark.parametrize("wanted", [["cow", "cat"], ["cow", "cat", "cat"], ["cow", "cat", "hen"], ["background"]])
def test_an_order_must_name_every_class_once(wanted: list[str]) -> None:
    with pytest.raises(InputError, match="class_order"):
        class_order(("background", "cat", "dog", "cow"), wanted)


def test_only_the_sequential_setting_labels_the_old_classes() -> None:
    for setting in set(Setting) - {Setting.DOMAIN}:
        found = Protocol("voc", "15-1", setting).steps(20)
        assert [step.new for step in found] == [step.new for step in steps("15-1", 20)]
        sequential = setting is Setting.SEQUENTIAL
        assert all(step.labelled_old == (step.old if sequential else ()) for step in found)
        assert {step.complete for step in found} == {sequential}


@pytest.mark.parametrize(
    ("task", "sizes"), [("11-5", [11, 5, 5]), ("11-1", [11] + [1] * 10), ("1-1", [1] * 21), ("offline", [21])]
)
def test_a_domain_protocol_cuts_the_domains_into_steps_and_knows_every_class_from_the_first(
    task: str, sizes: list[int]
) -> None:
    found = Protocol("cityscapes", task, Setting.DOMAIN).steps(19, 21)
    assert [len(step.domains) for step in found] == sizes
    assert [domain for step in found for domain in step.domains] == list(range(21))
    classes = tuple(range(1, 20))
    assert [(step.old, step.new) for step in found] == [((), classes)] + [(classes, ())] * (len(sizes) - 1)
    assert all(step.complete and step.labelled_old == step.old and step.num_classes == 20 for step in found)
    assert [step.is_last for step in found] == [False] * (len(sizes) - 1) + [True]


def test_a_task_that_does_not_fit_the_domains_is_refused() -> None:
    with pytest.raises(InputError, match="the task 11-5 does not fit the 4 domains of cityscapes"):
        Protocol.parse("cityscapes/11-5/domain").steps(19, 4)
