"""How GPUs sum follows what users say of their machine."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from byteps.device_plan import Group, device_plan
from byteps.settings import Settings, SettingsError
from byteps.torch.device_ways import chosen_ways


def settings(**told: object) -> Settings:
    return Settings(num_workers=2, num_servers=2, local_size=8, **told)


def names(**told: object) -> list[str]:
    return [way.name for way in chosen_ways(settings(**told))[0]]


def test_without_a_word_nccl_does_all_and_a_notice_says_how_to_do_better() -> None:
    ways, notice = chosen_ways(settings())
    assert [way.groups for way in ways] == [(Group(ranks=tuple(range(8)), roots=tuple(range(8))),)]
    assert "BYTEPS_MACHINE" in notice


def test_the_official_variables_say_roots_and_switches() -> None:
    ((way,), notice) = chosen_ways(settings(reduce_roots="2,3"))
    assert way.groups == (Group(ranks=tuple(range(8)), roots=(2, 3)),)
    assert "at local ranks 2,3" in notice
    ((way,), _) = chosen_ways(settings(pcie_switch_size=4))
    assert [group.ranks for group in way.groups] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_described_machine_gets_what_the_planner_finds_best() -> None:
    assert names(machine="nvlink") == ["reduce-broadcast"]
    assert names(machine="dgx-a100") == ["reduce-scatter"]
    mixture, notice = chosen_ways(settings(machine="pcie-only"))
    assert mixture[0].name == "cpu-assisted"
    assert "planned for pcie-only" in notice
    assert device_plan(mixture, 1000, 4).ranks == 8


def test_a_description_that_does_not_fit_is_named(tmp_path) -> None:
    with pytest.raises(
        SettingsError, match="BYTEPS_MACHINE='pcie-only': 16 workers on machine 'pcie-only', which has 8"
    ):
        chosen_ways(Settings(num_workers=2, local_size=16, machine="pcie-only"))
    with pytest.raises(SettingsError, match=r"BYTEPS_MACHINE=.*none\.toml"):
        chosen_ways(settings(machine=str(tmp_path / "none.toml")))
