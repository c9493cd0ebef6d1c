"""Heads and decoders from the command line: every pair decodes, or is refused with the decoders that fit."""

import pytest

from asr.run.command_line import CONFIGS, choices
from tests.small_runs import TINY_MODEL

CTC = ("ctc_beam", "ctc_greedy")
TRANSDUCER = ("transducer_beam", "transducer_greedy")
JOINER = ("head.predictor_dim=16", "head.joiner_dim=16", "head.warmup_batches=0")
VIEWS = ("augment=specaugment_cr_ctc",)
# what each head needs here, and the decoders that can search with it
HEADS = {
    "ctc": ((), CTC),
    "inter_ctc": (("encoder.num_layers=2", "head.intermediate_layers=[1]"), CTC),
    "cr_ctc": (VIEWS, CTC),
    "ctc_attention": (
        ("head.num_layers=1", "head.num_heads=2", "head.d_feedforward=16"),
        ("attention_rescoring", *CTC),
    ),
    "transducer": (JOINER, TRANSDUCER),
    "transducer_ctc": (JOINER, (*CTC, *TRANSDUCER)),
    "cr_ctc_transducer": ((*JOINER, *VIEWS), (*CTC, *TRANSDUCER)),
}
LOGGED = {"transducer_ctc": ("simple_loss", "pruned_loss", "ctc_loss")}  # beside the whole loss


def test_the_table_holds_every_head_and_every_decoder():
    assert HEADS.keys() == choices(CONFIGS, "head").keys()
    assert {decoder for _, fitting in HEADS.values() for decoder in fitting} == choices(CONFIGS, "decoder").keys()


@pytest.mark.parametrize("head", HEADS)
def test_a_head_trains_aligns_and_decodes_with_all_that_fit_and_no_other(small_run, tmp_path, head):
    words, fitting = HEADS[head]
    tiny = (*TINY_MODEL, "trainer.max_steps=2", "trainer.val_check_interval=2", f"run_dir={tmp_path}/run")
    data = ("data.prepare.num_train=24", "data.prepare.num_dev=4", "data.prepare.num_test=4")
    ended = small_run.run("train", *tiny, *data, f"head={head}", f"decoder={fitting[-1]}", *words)
    assert "WER" in ended.printed
    logged = (tmp_path / "run" / "metrics.csv").read_text()
    assert all(f",train/{name}," in logged for name in ("loss", *LOGGED.get(head, ())))
    aligned = small_run.run("align", f"run={tmp_path}/run", "torch_threads=1", f"output_dir={tmp_path}/words")
    assert "times of words" in aligned.last_line, aligned.printed
    for decoder in choices(CONFIGS, "decoder"):
        options = (f"decoder={decoder}", f"output_dir={tmp_path}/{decoder}", "torch_threads=1")
        ended = small_run.run("evaluate", f"run={tmp_path}/run", *options, code=0 if decoder in fitting else 2)
        if decoder in fitting:
            assert "WER" in ended.printed
        else:
            allowed = f"choose decoder={' or decoder='.join(fitting)}, or another head"
            assert allowed in ended.last_line, ended.printed
            assert not (tmp_path / decoder).exists()
