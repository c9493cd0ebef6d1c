"""One of two processes that train together; the second is given a batch that is not finite."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from lightning.pytorch.strategies import DDPStrategy

from asr.training.averaging import Averaging
from tests.training.tiny import batch_of, batches_loader, tiny_module, tiny_trainer

torch.set_num_threads(1)
rank = int(os.environ["RANK"])
batches = [batch_of(60, 40, seed=10 * rank + seed) for seed in range(3)]
batches[1] = replace(batches[1], ids=("bad", "second") if rank else ("good", "second"))
if rank:
    batches[1].features[0, 3, 2] = float("nan")
module, averaging = tiny_module(), Averaging()
ddp = DDPStrategy(process_group_backend="gloo")
trainer = tiny_trainer(3, [averaging], devices=2, strategy=ddp, use_distributed_sampler=False)
trainer.fit(module, train_dataloaders=batches_loader(batches))
assert averaging.averages is not None
found = {
    "counts": module.guard.state_dict(),
    "weights": module.recogniser.state_dict(),
    "averages": averaging.averages.state_dict(),
}
torch.save(found, Path(sys.argv[1]) / f"{rank}.pt")
