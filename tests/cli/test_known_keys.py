"""Keys that nothing reads: each mapping of a config refuses them, whoever has put them there."""

import pytest
from omegaconf import DictConfig, OmegaConf

from asr.cli import train as train_module
from asr.cli.builders.build import plain
from asr.cli.config.help import CONFIGS
from asr.cli.config.known_keys import check_known
from asr.cli.errors import ConfigError
from tests.cli.conftest import TINY
from tests.cli.test_configs import composed

ALL_OPTIONS = (
    *("recipe=digits/zipformer_ctc", "optimizer=muon", "augment=noise", "augment.audio.noise=null", "logger=csv"),
    *("features=log_mel", "head=cr_ctc_transducer", "decoder=transducer_beam", "callbacks.optimizer_health.every=5"),
)


def mappings(config, place=""):
    """Yield the places of a config's mappings."""
    yield place
    for key in config:
        inner = config._get_node(key)
        if isinstance(inner, DictConfig):
            yield from mappings(inner, f"{place}.{key}".lstrip("."))


def start(config):
    check_known("train", CONFIGS, config)
    train_module.dry_run(plain(config))


def test_every_mapping_of_a_run_refuses_a_key_that_nothing_reads():
    config = composed(*ALL_OPTIONS)
    # these are read in sweeps, and by the name of an optimizer
    places = {place for place in mappings(config) if place.partition(".")[0] not in ("sweep", "best_lr")}
    assert {"", "data", "augment", "augment.audio", "encoder", "callbacks.cost", "init"} <= places
    for place in places:
        changed = OmegaConf.create(OmegaConf.to_container(config))
        OmegaConf.update(changed, f"{place}.fooo".lstrip("."), 1, force_add=True)
        with pytest.raises(ConfigError, match=r"fooo|parameter rule"):
            start(changed)


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("train", (*TINY, "+foo=1"), "foo: there is no key 'foo' at the top level, and nothing would read one"),
        ("train", (*TINY, "+weight_decay=0.1"), "there is no key 'weight_decay' at the top level"),
        (
            "train",
            (*TINY, "+data.limit=1"),
            "data.limit: there is no key 'limit' in data, and nothing would read one. Did",
        ),
        ("train", (*TINY, "+augment.noise.folder=x"), "augment.noise: there is no key 'noise' in augment, and nothing"),
        ("train", (*TINY, "augment.noise.folder=x"), "there is no key 'noise' in augment. Allowed: audio, features."),
        ("train", ("resume=RUN", "+foo=1"), "foo: there is no key 'foo' at the top level"),
        ("prepare", (*TINY, "+foo=1"), "foo: there is no key 'foo' at the top level"),
        ("evaluate", ("run=RUN", "+encoder.chunk_size=[16]"), "encoder: there is no key 'encoder' at the top level"),
        ("evaluate", ("run=RUN", "+scoring.case=lower"), "scoring.case: there is no key 'case' in scoring"),
        ("evaluate", ("run=RUN", "+decoder.beam_size=2"), "+decoder.beam_size=2: this needs decoder=… too"),
        ("transcribe", ("run=RUN", "audio=x", "+scoring.normalize=basic"), "there is no key 'scoring'"),
        ("align", ("run=RUN", "+foo=1"), "foo: there is no key 'foo' at the top level"),
        ("export", ("run=RUN", "output=x", "+encoder.chunk_size=[16]"), "there is no key 'encoder' at the top level"),
        ("stream", ("run=RUN", "audio=x", "+foo=1"), "foo: there is no key 'foo' at the top level"),
        ("lm", ("run=RUN", "output=x", "+foo=1"), "foo: there is no key 'foo' at the top level"),
        ("compare", ("runs=RUN", "+foo=1"), "foo: there is no key 'foo' at the top level"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(small_run, tmp_path, command, words, said):
    words = [word.replace("RUN", str(small_run.run_dir)) for word in words]
    ended = small_run.programs.run(command, *words, cwd=tmp_path)
    assert (ended.code, said in " ".join(ended.printed.split())) == (2, True), ended.printed
    assert "would add it" not in ended.printed
    assert not [*tmp_path.iterdir()]


def test_a_key_that_other_values_refer_to_is_read():
    config = composed("+width=48", "+data.shift=2", "encoder.d_model=${width}", "seed=${data.shift}")
    check_known("train", CONFIGS, config)
    assert (config.encoder.d_model, config.seed) == (48, 2)
