"""Every yaml composes, and what it describes can be built."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from asr.run.build import validate_run
from asr.run.choices import pretrained_choices, with_own_classes
from asr.run.command_line import CONFIGS, choices
from tests.configs import choice, composed
from tests.models.pretrained import save_model
from tests.text.cases import own_model
from werdict.errors import ConfigError

ROOT = Path(__file__).parents[2]
NO_GROUPS = ("hydra", "compare")
GROUPS = sorted(folder.name for folder in CONFIGS.iterdir() if folder.is_dir() and folder.name not in NO_GROUPS)
SINGLE = [(group, name) for group in GROUPS if group != "recipe" for name in choices(CONFIGS, group)]
# those of large corpora are meant for GPUs, and take a second to be built
ON_GPUS = {path.parent.name for path in (ROOT / "recipes").glob("*/*.yaml") if "/trainer: gpu" in path.read_text()}
LARGE = [recipe for recipe in choices(CONFIGS, "recipe") if recipe.split("/")[0] in ON_GPUS]
SMALL = [recipe for recipe in choices(CONFIGS, "recipe") if recipe not in LARGE]
RECIPES = [*SMALL, *LARGE]
# what a choice needs beside itself
COMPANIONS = {
    ("trainer", "gpu"): ["trainer.accelerator=cpu"],
    ("trainer", "ddp"): ["trainer.accelerator=cpu", "trainer.devices=2"],
    ("trainer", "slurm"): ["trainer.accelerator=cpu", "trainer.devices=2", "trainer.num_nodes=1"],
    ("augment", "speed_specaugment"): ["features=log_mel"],
    ("augment", "noise"): ["features=log_mel", "augment.audio.noise=null"],
    ("encoder", "pretrained"): ["features=waveform", "augment=none"],
    ("features", "waveform"): ["augment=none"],
    ("features", "log_mel_precomputed"): ["augment=specaugment"],
    ("head", "transducer"): ["decoder=transducer_greedy"],
    ("decoder", "transducer_greedy"): ["head=transducer"],
    ("decoder", "attention_rescoring"): ["head=ctc_attention"],
    ("decoder", "transducer_beam"): ["head=transducer"],
    ("tokenizer", "file"): ["tokenizer.path=own.model"],
}


@pytest.fixture(scope="session")
def own_encoder(tmp_path_factory) -> list[str]:
    """What encoder=pretrained needs where there is no network."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models") / "wav2vec2"
    save_model(folder)
    return [f"encoder.model={folder}"]


@pytest.mark.parametrize(("group", "name"), SINGLE, ids=lambda value: str(value))
def test_every_choice_composes_and_is_built(group, name, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("asr.run.parts.find_spec", lambda name: True)  # packages of extras may be missing here
    Path("own.model").write_bytes(own_model(vocab_size=12))
    words = request.getfixturevalue("own_encoder") if name == "pretrained" else []
    validate_run(composed(f"{group}={name}", *COMPANIONS.get((group, name), []), *words).options)


@pytest.mark.parametrize(
    ("words", "is_left_out"),
    [
        ((), True),
        (("augment=noise", "augment.audio.noise=null"), True),
        (("augment=specaugment", "augment.features.num_feature_masks=0"), False),
    ],
)
def test_masks_of_a_spectrum_are_left_out_of_audio_unless_they_are_given(words, is_left_out, own_encoder):
    run = composed("encoder=pretrained", "features=waveform", *words, *own_encoder)
    keys = {choice.key for choice in pretrained_choices(run)}
    assert ("augment.features" in keys) == is_left_out
    if not is_left_out:
        validate_run(run.options)


SEARCHED = OmegaConf.load(CONFIGS / "sweep" / "optimizers.yaml").sweep.optimizers


@pytest.mark.parametrize("optimizer", SEARCHED)
def test_every_optimizer_takes_the_settings_that_a_sweep_searches(optimizer):
    words = [f"optimizer.{name}={value}" for name, value in SEARCHED[optimizer].around.items()]
    validate_run(composed(f"optimizer={optimizer}", *words).options)


def test_an_option_that_a_yaml_does_not_list_is_set_without_a_plus_and_the_class_refuses_others():
    options = composed("optimizer=lion", "optimizer.betas=[0.95,0.98]", "schedule.min_lr_ratio=0.1").options
    assert (options.optimizer.betas, options.schedule.min_lr_ratio) == ([0.95, 0.98], 0.1)
    with pytest.raises(ConfigError, match=r"schedule\.min_lr: .*'min_lr_ratio'"):
        with_own_classes(composed("schedule.min_lr=0.1"))


@pytest.mark.parametrize("recipe", LARGE)
def test_every_recipe_for_gpus_is_built_and_runs_on_a_cpu(recipe, request):
    trainer = composed(f"recipe={recipe}").options.trainer
    assert (trainer.accelerator, trainer.precision) == ("gpu", "bf16-mixed")
    words = request.getfixturevalue("own_encoder") if recipe.startswith("finetune/") else []
    validate_run(composed(f"recipe={recipe}", "trainer=cpu", *words).options)


@pytest.mark.parametrize(
    ("recipe", "optimizers"),
    [*((recipe, list(choices(CONFIGS, "optimizer"))) for recipe in SMALL), *((recipe, ["lion"]) for recipe in LARGE)],
    ids=RECIPES,
)
def test_every_recipe_composes_with_every_optimizer(recipe, optimizers, request):
    words = request.getfixturevalue("own_encoder") if recipe.startswith("finetune/") else []
    for optimizer in optimizers:
        options = composed(f"recipe={recipe}", f"optimizer={optimizer}", "trainer=cpu", *words).options
        # a recipe that set optimizer keys would leak them into another optimizer
        alone = choice("optimizer", optimizer)
        alone.lr = options.best_lr.get(optimizer, alone.lr)
        whole = OmegaConf.create({"optimizer": alone, "trainer": {"max_steps": options.trainer.max_steps}})
        assert options.optimizer.plain() == OmegaConf.to_container(whole.optimizer, resolve=True)
        validate_run(options)


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe.endswith("/zipformer_ctc")])
def test_a_recipe_has_the_best_rate_of_its_optimizer_and_no_rate_of_others(recipe):
    for words, lr in (([], 0.135), (["optimizer=adamw"], 1.5e-3), (["optimizer.lr=0.01"], 0.01)):
        assert composed(f"recipe={recipe}", *words).options.optimizer.lr == lr
    assert composed(f"recipe={recipe}").options.best_lr.keys() <= choices(CONFIGS, "optimizer").keys()


@pytest.mark.parametrize("optimizer", choices(CONFIGS, "optimizer"))
def test_a_recipe_can_give_every_optimizer_a_rate(optimizer):
    assert composed(f"optimizer={optimizer}", f"+best_lr.{optimizer}=0.25").options.optimizer.lr == 0.25


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_has_its_papers(recipe):
    folder = ROOT / "recipes" / recipe.split("/")[0]
    _, *module, _ = composed(f"recipe={recipe}").config.data.prepare._target_.split(".")
    assert (ROOT / "/".join(module)).with_suffix(".py").is_file()
    for name in ("README.md", "RESULTS.md"):
        assert (folder / name).is_file(), f"{folder} lacks {name}"
    text = (folder / f"{recipe.split('/')[1]}.yaml").read_text()
    assert text.startswith("# @package _global_\n")
    assert f"asr-train recipe={recipe}" in text
    assert f"\n# Expect: the row of this name in recipes/{folder.name}/RESULTS.md\n" in text


def test_every_yaml_says_what_it_is_in_one_line():
    for group in GROUPS:
        for name, text in choices(CONFIGS, group).items():
            assert 10 < len(text) < 120, f"{group}={name}: {text!r}"


def test_the_schedule_follows_the_budget():
    assert composed("trainer.max_steps=77").options.schedule.max_steps == 77
