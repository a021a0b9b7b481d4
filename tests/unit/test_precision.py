"""Mixed precision: short numbers in training steps, float32 everywhere else, and nothing lost in fp16."""

import subprocess
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import propfair
from propfair.algorithms.base import Order
from propfair.algorithms.fedavg import FedAvg
from propfair.core.client import LocalTraining, Workload, run_client
from propfair.core.messages import Report
from propfair.core.params import FlatModel
from propfair.core.precision import Differentiator, _tiles_run, check_precision, precision_note, predict
from propfair.errors import ConfigError
from propfair.runs.config import make_config
from propfair.runs.launch import run
from tests.builders import random_federation, seeded

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Watched(nn.Module):
    """Notes the type of numbers that leave its first layer, when it trains and when it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    seen: ClassVar[set[tuple[bool, torch.dtype]]] = set()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        self.seen.add((self.training, hidden.dtype))
        out: Tensor = self.last(hidden.relu())
        return out


def has(monkeypatch: pytest.MonkeyPatch, **instructions: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions)


def trained(precision: Any, **local: Any) -> tuple[Report, Tensor]:
    model = FlatModel(seeded(Watched))
    work = Workload(
        random_federation((23, 10), seed=1), FedAvg(), LocalTraining(lr=0.1, batch_size=5, precision=precision, **local)
    )
    start = model.params.clone()
    report, delta, _ = run_client(model, work, 1, Order(), 0, start, model.buffers, None)
    assert model.params.dtype == delta.dtype == torch.float32
    return report, delta


@pytest.mark.parametrize("optimizer", ["sgd", "Adam"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_steps_in_short_numbers_are_those_of_float32_up_to_rounding(precision: str, optimizer: str) -> None:
    (exact_report, exact), (report, delta) = (trained(p, optimizer=optimizer) for p in ("float32", precision))
    assert not torch.equal(delta, exact)
    if optimizer == "sgd":  # Adam's first step is the sign of a gradient
        torch.testing.assert_close(delta, exact, rtol=0, atol=0.02 * float(exact.abs().max()))
    assert report.running_loss == pytest.approx(exact_report.running_loss, rel=0.01)


def test_only_training_steps_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, avx512_bf16=True)
    Watched.seen.clear()
    local = LocalTraining(batch_size=5, precision="bf16")
    result = propfair.train(Watched(), random_federation((12, 10), seed=1), "fedavg", rounds=1, local=local)
    assert Watched.seen == {(True, torch.bfloat16), (False, torch.float32)}
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    assert not any("bf16" in note for note in result.run.environment.notes)


@pytest.mark.parametrize("precision", SHORT)
def test_outputs_of_any_structure_come_back_in_float32(precision: Any) -> None:
    class Several(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            out = super().forward(x)
            assert out.dtype == SHORT[precision]
            return {"logits": out, "more": [out, (out.argmax(1), "name")]}

    found = predict(Several(4, 2), torch.ones(3, 4), precision, "cpu")
    assert isinstance(found, Mapping)
    assert found["logits"].dtype == found["more"][0].dtype == torch.float32
    assert found["more"][1][0].dtype == torch.int64
    assert found["more"][1][1] == "name"


class Everything(nn.Module):
    """Convolution, normalisation, recurrence, attention and products."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.recurrent, self.attention = nn.LSTM(8, 8, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(self.conv(x)).relu().flatten(2).mT
        words, _ = self.recurrent(pixels)
        seen, _ = self.attention(words, words, words)
        out: Tensor = self.last((seen @ seen.mT @ seen).mean(1).float())
        return out


def test_rounding_stands_for_instructions_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = seeded(Everything), torch.randn(4, 1, 5, 5)

    def gradients(**instructions: bool) -> Tensor:
        has(monkeypatch, **instructions)
        found = torch.autograd.grad(predict(module, x, "bf16", "cpu").square().sum(), list(module.parameters()))
        return torch.cat([gradient.flatten() for gradient in found])

    exact = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
    in_float32 = torch.cat([gradient.flatten() for gradient in exact])
    by_torch, by_rounding = gradients(avx512_bf16=True), gradients(avx2=True)
    error = (by_torch - in_float32).norm()
    assert 0.2 * error < (by_rounding - in_float32).norm() < 3 * error


def test_small_derivatives_survive_fp16() -> None:
    weight = torch.ones(1, requires_grad=True)
    objective = (weight.half() * 2.0**-20).float().sum() * 2.0**-8  # the derivative passes through fp16 as 2^-28
    assert torch.autograd.grad((weight.half() * 2.0**-20).float().sum() * 2.0**-8, [weight])[0] == 0
    assert Differentiator([weight], "fp16")(objective)[0] == pytest.approx(2.0**-28, rel=0.1)


def test_where_the_scale_is_too_large_the_same_step_is_taken_with_a_smaller_one() -> None:
    weight, unused = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    differentiate = Differentiator([weight, unused], "fp16")
    for factor in (1000.0, 3.0):
        objective = (weight.half() * 4).float().sum() * factor
        with torch.no_grad():
            found = differentiate(objective, zeros=False)
        assert found[0] == pytest.approx(4 * factor)
        assert found[1] is None


def test_a_gradient_that_is_not_finite_at_all_stays_so() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert not Differentiator([weight], "fp16")((weight * torch.inf).sum())[0].isfinite()


def test_the_processor_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, avx2=True)
    assert "can't multiply bf16" in precision_note("bf16", "cpu")
    assert precision_note("float32", "cpu") == ""
    check_precision("bf16", "cpu", torch.float32)
    with pytest.raises(ConfigError, match=r"--device cuda.*float32.*bf16"):
        check_precision("fp16", "cpu", torch.float32)
    has(monkeypatch, avx512_bf16=True, avx512_fp16=True)
    assert precision_note("bf16", "cpu") == ""
    check_precision("fp16", "cpu", torch.float32)


@pytest.mark.parametrize("ended_by", [0, -4])
def test_tiles_that_are_promised_are_tried(monkeypatch: pytest.MonkeyPatch, ended_by: int) -> None:
    tries = []

    def tried(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        tries.append(command)
        return subprocess.CompletedProcess(command, ended_by)

    monkeypatch.setattr(subprocess, "run", tried)
    monkeypatch.setenv("PROPFAIR_TILES_RUN", "forgotten afterwards")
    monkeypatch.delenv("PROPFAIR_TILES_RUN")
    has(monkeypatch, amx_bf16=True, avx512_bf16=True)
    try:
        for _ in range(2):
            _tiles_run.cache_clear()  # as in a worker
            note = precision_note("bf16", "cpu")
            assert note == "" if ended_by == 0 else "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in note
    finally:
        _tiles_run.cache_clear()
    assert len(tries) == 1
    compile(tries[0][-1], "the product", "exec")


def test_models_of_other_types_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"holds float64.*model\.float"):
        check_precision("bf16", "cpu", torch.float64)
    with pytest.raises(ConfigError, match=r"Use local\.precision='float32'"):
        check_precision("bf16", "meta", torch.float32)


def test_an_unknown_precision_is_told_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"Known: bf16, float32, fp16"):
        LocalTraining(precision="float16")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="precision"):
        make_config({}, ["local.precision=half"])


def test_a_run_records_its_precision_and_what_the_processor_makes_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has(monkeypatch, avx2=True)
    config = make_config({}, ["data=digits", "schedule.rounds=1", "local.precision=bf16", "engine=inprocess"])
    result = run(config)
    assert result.run.config["local"]["precision"] == "bf16"
    assert any("can't multiply bf16" in note for note in result.run.environment.notes)
    with pytest.raises(ConfigError, match="fp16"):
        run(make_config({}, ["data=digits", "local.precision=fp16"]))
