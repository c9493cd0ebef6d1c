"""How often a run builds its optimizer, and reads its checkpoint."""

import torch
from torch.optim import Optimizer

import asr
from tests.small_runs import TINY


def test_a_run_and_its_resumption_build_few_optimizers_and_read_each_checkpoint_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built, read, build, load = [], [], Optimizer.__init__, torch.load

    def counted_build(self, *args, **kwargs):
        built.append(type(self).__name__)
        build(self, *args, **kwargs)

    def counted_load(file, *args, **kwargs):
        read.append(str(getattr(file, "name", file)).rpartition("/")[2])
        return load(file, *args, **kwargs)

    monkeypatch.setattr(Optimizer, "__init__", counted_build)
    monkeypatch.setattr(torch, "load", counted_load)
    words = [*TINY, "logger=csv", "trainer.max_steps=2", "trainer.val_check_interval=1"]
    asr.train([*words, "run_dir=run"])
    assert (built, read) == (["AdamW"], ["best.ckpt"])
    built.clear(), read.clear()
    asr.train(["resume=run", "trainer.max_steps=3", "allow_changes=true"])
    assert (built, read) == (["AdamW"], ["update-000002.ckpt", "best.ckpt"])
