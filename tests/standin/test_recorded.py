import pytest

from tests.standin.compare_record import TORCH, compare, explained, trace
from tests.standin.golden import read_golden
from tests.standin.programs import PROGRAMS, transformers_programs

GOLDEN = read_golden()
HF = ("hf_gpt2_prefill_b1_s512_bf16", "hf_distilbert_infer_b1_s64")


def check(name, build):
    verdict = compare(GOLDEN[name], trace(build), lambda want, got: explained(TORCH, want, got))
    assert verdict.first_difference is None
    assert verdict.equal_strides == verdict.tensors


# lstm_train comes before gru_infer_b1, as in the record: cuDNN's dropout state, once made, is handed to every RNN.
@pytest.mark.parametrize("name", PROGRAMS)
def test_dispatches_what_an_h200_dispatched(name):
    check(name, PROGRAMS[name])


@pytest.mark.parametrize("name", HF)
def test_transformers_program_dispatches_what_an_h200_dispatched(name):
    transformers = pytest.importorskip("transformers", reason="builds models from transformers' configs")
    if not transformers.__version__.startswith("5.17"):
        pytest.skip("the record was made with transformers 5.17; other versions write the models differently")
    check(name, transformers_programs()[name])
