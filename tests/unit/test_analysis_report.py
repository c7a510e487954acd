"""The report: verdicts on whole runs, what is said about what is missing, and that it is written from anything."""

from dataclasses import replace

import msgspec
import pytest
from synthetic import KS, MODELS, NOT_INSTALLED, SLOW_NIC, failed, figure_12, loaded, made, not_run, replayed

from baselines.launch import ROOT
from experiments import analysis, opponents, record, report
from experiments.document import markdown
from experiments.record import Fidelity, OracleCheck


@pytest.fixture(autouse=True)
def _made_up_records_count(monkeypatch):
    monkeypatch.setattr(analysis, "current_hashes", lambda _: None)


FIG12 = {
    *("byteps-near-optimal", "fig12-gap", "byteps-beats-ring", "goodput-rises-with-k", "ring-at-its-bound"),
    *("traffic-as-planned", "sums-exact"),
}


def judged(*runs):
    return {one.claim.id: one for one in report.judge_all(report.load_claims(report.CLAIMS), runs)}


def words(*runs):
    return {name: verdict.word for name, verdict in judged(*runs).items()}


def opponents_of_figure_12(seconds, blocks=2):
    """What the claims about opponents need of Figure 12; `seconds` of (contender, k, bytes)."""
    wanted = [("horovod", 0, 2**26), ("mpi-ring", 0, 2**24), ("byteps", 0, 2**24), ("byteps", 8, 2**24)]
    wanted += [("mxnet-sync", 8, 2**24), ("mxnet-p3", 8, 2**24)]
    plain = [
        made(name, seconds[name, k], k=k, nbytes=nbytes, block=block)
        for block in range(blocks)
        for name, k, nbytes in wanted
    ]
    two_calls = {"settings": {"call": "push+pull"}, "k": 8, "nbytes": 2**24}
    return plain + [made("mxnet-sync", 1.5, block=block, **two_calls) for block in range(blocks)]


GOOD = {
    **{("horovod", 0): 5.3, ("mpi-ring", 0): 1.4, ("byteps", 0): 1.25},
    **{("byteps", 8): 0.74, ("mxnet-sync", 8): 1.5, ("mxnet-p3", 8): 0.9},
}


def slow_nics(factors, blocks=2):
    """Replays on slow NICs; `factors` of (contender, k): iteration over computation."""
    return [
        replayed(name, factor, model, k=k, block=block, experiment="slow_nics", real_nic=SLOW_NIC)
        for block in range(blocks)
        for model in MODELS
        for (name, k), factor in factors.items()
    ]


FAST = {
    **{("byteps", 0): 3.5, ("byteps", 8): 2.0, ("horovod", 0): 3.6, ("ddp", 0): 3.55},
    **{("mxnet-sync", 8): 4.0, ("mxnet-p3", 8): 2.5},
}


def fig15_16(blocks=2):
    names = (("byteps", 0), ("byteps", 8), ("horovod", 0), ("ddp", 0), ("mxnet-sync", 8))
    return [
        replayed(name, 1.1, model, k=k, block=block, experiment="fig15_16")
        for block in range(blocks)
        for model in MODELS
        for name, k in names
    ]


def sizes(blocks=2):
    names = ("byteps", "gloo-ring", "horovod", "ddp", "mpi-ring", "mxnet-sync")
    return [
        made(name, nbytes * 1e-7, nbytes=nbytes, block=block, experiment="sizes")
        for block in range(blocks)
        for name in names
        for nbytes in (2**16, 2**20, 2**23)
    ]


def test_a_good_run_of_figure_12_reproduces_its_claims():
    found = words(loaded("fig12", figure_12()))
    assert {found[name] for name in FIG12} == {"reproduced"}
    assert found["adder-outruns-100g"] == "not testable here"


def test_a_good_run_of_everything_reproduces_every_claim_about_opponents():
    others = [made("mpi", 3.0, block=block) for block in range(2)]
    others += [made("tensorflow-ps", 1.8, k=8, block=block) for block in range(2)]
    runs = [
        loaded("fig12", figure_12() + opponents_of_figure_12(GOOD) + others),
        loaded("slow_nics", slow_nics(FAST)),
        loaded("fig15_16", fig15_16()),
        loaded("sizes", sizes()),
    ]
    found = words(*runs)
    about_opponents = {name for name in found if name.startswith(("k0-", "k8-", "cpu-", "horovod", "opponents"))}
    assert len(about_opponents) == 11
    assert {name: found[name] for name in about_opponents} == dict.fromkeys(about_opponents, "reproduced")
    assert {found[name] for name in FIG12} == {"reproduced"}


def test_a_fast_opponent_is_seen():
    found = words(
        loaded("fig12", figure_12() + opponents_of_figure_12({**GOOD, ("mxnet-p3", 8): 0.75})),
        loaded("slow_nics", slow_nics({**FAST, ("ddp", 0): 3.0})),
    )
    assert found["k8-beats-p3"] == "not reproduced"
    assert found["k8-beats-allreduce-when-communication-bound"] == "not reproduced"
    assert found["k8-beats-p3-when-communication-bound"] == "reproduced"


def test_without_horovod_no_claim_about_the_best_all_reduce_is_reproduced():
    factors = {key: factor for key, factor in FAST.items() if key[0] != "horovod"}
    missing = [not_run("horovod", workload=model, block=0, experiment="slow_nics") for model in MODELS]
    verdict = judged(loaded("slow_nics", slow_nics(factors) + missing))["k8-beats-allreduce-when-communication-bound"]
    assert verdict.word == "inconclusive"
    assert verdict.reason == f"without horovod: {NOT_INSTALLED}"


def test_a_contender_must_have_taken_part_in_each_of_the_claims_experiments():
    factors = {**FAST, ("mxnet-sync", 0): 3.6}
    alone = [one for one in fig15_16() if one.case.contender != "ddp"]
    verdict = judged(loaded("slow_nics", slow_nics(factors)), loaded("fig15_16", alone))["k0-no-slower-on-models"]
    assert verdict.word == "inconclusive"
    assert verdict.reason == "without ddp: fig15_16: no verified record"


def test_a_good_repetition_does_not_undo_a_wrong_sum():
    wrong = made("horovod", 1.0, record_oracle=OracleCheck(max_error=1.0, tolerance=0.0, checked=8, passed=False))
    good = made("horovod", 1.0)
    run = replace(loaded("fig12", [good]), attempts=[wrong, good])
    assert words(run)["opponents-sums-exact"] == "not reproduced"
    fixed = replace(run, attempts=[msgspec.structs.replace(wrong, code_hash="of before"), good])
    assert words(fixed)["opponents-sums-exact"] == "inconclusive"  # other opponents are missing


def vgg16_on_two_blocks(**of_ddp):
    """BytePS's ratio over the best of Horovod and DDP; what DDP, the faster one, left in block 1 is `of_ddp`."""
    records = [
        replayed(
            name, factor, "vgg16", block=block, real_nic=SLOW_NIC, **(of_ddp if (name, block) == ("ddp", 1) else {})
        )
        for block in range(2)
        for name, factor in (("byteps", 3.0), ("horovod", 4.5), ("ddp", 3.3))
    ]
    return opponents.over(records, opponent=opponents.anybody, situation=opponents.replay), records


def test_a_block_without_the_best_opponent_gives_no_ratio():
    (whole,) = vgg16_on_two_blocks()[0].values()
    assert whole == pytest.approx([1.1, 1.1])
    (ratios,) = vgg16_on_two_blocks(record_fidelity=Fidelity(verdict="cpu-bound"))[0].values()
    assert ratios == pytest.approx([1.1])


def test_an_opponent_that_always_failed_holds_a_ratio_up_and_one_that_was_always_cpu_bound_is_named():
    _, records = vgg16_on_two_blocks()
    what = {"workload": "vgg16", "nbytes": records[0].case.nbytes, "dilation": records[0].case.dilation}
    dead = failed("gloo-ring", scale=records[0].case.scale, **what)
    assert opponents.over([*records, dead], opponent=opponents.anybody, situation=opponents.replay) == {}
    busy = replayed("gloo-ring", 3.1, "vgg16", real_nic=SLOW_NIC, record_fidelity=Fidelity(verdict="cpu-bound"))
    (contest,) = opponents.contests([*records, busy], opponents.seconds_of)
    assert contest.left_out(0) == ["Ring all-reduce (gloo)"]
    assert len(contest.opponents(0)) == 2


def test_a_slow_run_is_not_reproduced():
    found = words(loaded("fig12", figure_12(fraction=0.85)))
    assert found["byteps-near-optimal"] == found["fig12-gap"] == found["byteps-beats-ring"] == "not reproduced"
    assert found["goodput-rises-with-k"] == "reproduced"


def test_unfaithful_launches_enter_no_claim_about_speed():
    found = words(loaded("fig12", figure_12(fidelity=Fidelity(verdict="cpu-bound"))))
    assert found["byteps-near-optimal"] == "inconclusive"


def test_a_wrong_sum_is_not_hidden_by_being_unverified():
    wrong = OracleCheck(max_error=1.0, tolerance=0.0, checked=8, passed=False)
    assert words(loaded("fig12", figure_12(oracle=wrong)))["sums-exact"] == "not reproduced"
    one = made("mxnet-sync", 1.0, k=8, record_oracle=wrong)
    assert words(loaded("fig12", [one]))["opponents-sums-exact"] == "not reproduced"


def test_what_was_only_not_installed_was_never_tried():
    run = loaded("fig12", [not_run(name, k=8) for name in ("mxnet-sync", "mxnet-p3")])
    assert words(run)["k8-beats-mxnet"] == "not testable here"


def test_other_experiments_do_not_enter_the_claims_about_figure_12():
    others = [made("byteps", 99.0, k=k, nbytes=2**26, experiment="sizes") for k in KS]
    found = words(loaded("fig12", figure_12()), loaded("sizes", others))
    assert found["byteps-near-optimal"] == "reproduced"


@pytest.fixture
def results(tmp_path):
    """A run with every experiment, a peer that is not installed, and a failure in each."""
    runs = {
        "fig12": figure_12() + opponents_of_figure_12(GOOD),
        "slow_nics": slow_nics(FAST),
        "fig15_16": fig15_16(),
        "sizes": sizes(),
        "fig4": [
            replayed(name, 1.2, "vgg16@fig4", n=4, k=k, block=block, settings=settings, experiment="fig4")
            for block in range(2)
            for name, k, settings in (("byteps", 0, {}), ("byteps", 4, {}), ("horovod", 0, {"strategy": "scheduled"}))
        ],
        "gain": [
            replayed(name, 1.3, model, n=4, block=block, settings={"strategy": strategy}, experiment="gain")
            for block in range(2)
            for model in MODELS
            for name in ("horovod", "mxnet-sync", "byteps")
            for strategy in ("one-by-one", "fused", "plain" if name == "byteps" else "scheduled")
        ],
        "tune": [
            replayed("horovod", factor, "vgg19", settings={"cycle": cycle}, experiment="tune")
            for cycle, factor in (("1", 2.0), ("5", 3.0))
        ],
    }
    for name, records in runs.items():
        what = {"experiment": name, "workload": records[0].case.workload}
        for one in (*records, failed("gloo-ring", **what), not_run("tensorflow-ps", **what)):
            record.append(tmp_path / "raw" / f"{name}.jsonl", one)
    return tmp_path


def test_every_section_is_there_and_names_what_was_not_run(results):
    path, verdicts = report.write(results)
    text = path.read_text()
    for title in (
        *("## Contenders", "## Claims", "## Figure 12", "## Figure 4", "## Figures 15 and 16", "## The same models"),
        *("## Where the gain comes from", "## Sizes", "## BytePS against its opponents", "## Fairness", "### Tuning"),
        *("## What it costs", "## Was the machine fast enough?", "## How far from a real cluster?"),
    ):
        assert title in text
    first = text.index("\n## Figure 12")  # the experiments' own sections follow each other
    for section in text[first : text.index("\n## Figures of theory")].split("\n## ")[1:]:
        assert "install it with: make it" in section, section.splitlines()[0]
    assert verdicts


def test_a_missing_record_is_not_worth_a_crash(tmp_path):
    for records in ([], [failed("byteps", experiment="fig4")], [not_run("horovod", experiment="fig4")]):
        for one in records:
            record.append(tmp_path / "raw" / "fig4.jsonl", one)
        text = report.write(tmp_path)[0].read_text()
        assert "## Claims" in text


def test_one_block_gives_numbers_without_an_interval(tmp_path):
    for one in figure_12(blocks=1):
        record.append(tmp_path / "raw" / "fig12.jsonl", one)
    text = report.write(tmp_path)[0].read_text()
    assert "0.960 (n=1)" in text
    assert "in a single block, no interval" in text


def test_failures_are_told_where_the_number_would_stand(tmp_path):
    for one in (*figure_12(), failed("mxnet-sync", k=2, nbytes=2**26)):
        record.append(tmp_path / "raw" / "fig12.jsonl", one)
    section = report.write(tmp_path)[0].read_text().split("## Figure 12")[1]
    row = next(line for line in section.splitlines() if line.startswith("| MXNet PS "))
    assert "| failed" in row


def test_the_committed_reference_run_is_still_reported():
    document, verdicts = report.compose(ROOT / "results", sources=("reference",))
    assert "## Figure 12" in markdown(document)
    assert {one.word for one in verdicts} & {"reproduced", "not reproduced"}
