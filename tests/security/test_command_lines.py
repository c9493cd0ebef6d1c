"""Pasted command lines and recipes: Hydra builds its own parts only, and a yaml alone runs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from asr.cli.config.help import config_folder
from asr.cli.config.options import KINDS
from asr.tracking.wandb_access import chosen_mode
from tests.programs import Ended
from tests.security.hostile_pickle import write_hostile_pickle

HYDRA = "only what belongs to Hydra and its plugins is built"
LINES = {
    "callback of the system": ("+hydra.callbacks.x={_target_:os.mkdir,path:hacked}", HYDRA),
    "callback of torch": ("+hydra.callbacks.x={_target_:torch.load,f:evil.pickle,weights_only:false}", HYDRA),
    "callback that pickles": (
        "+hydra.callbacks.x={_target_:hydra.experimental.callbacks.PickleJobInfoCallback}",
        HYDRA,
    ),
    "callback in a callback": (
        "+hydra.callbacks.sweep_table.x={_target_:os.mkdir,path:hacked}",
        HYDRA,
    ),
    "callback by interpolation": ("+hydra.callbacks.x={_target_:'${oc.env:EVIL,os.mkdir}',path:hacked}", HYDRA),
    "callback through Hydra": ("+hydra.callbacks.x={_target_:hydra.utils.get_method,path:os.mkdir}", HYDRA),
    "launcher": ("-m seed=1,2 hydra.launcher._target_=os.mkdir +hydra.launcher.path=hacked", HYDRA),
    "launcher with more": ("-m seed=1,2 +hydra.launcher.x={_target_:os.mkdir,path:hacked}", HYDRA),
    "sweeper": ("-m seed=1,2 hydra.sweeper._target_=os.mkdir", HYDRA),
    "logging to a file": (
        "+hydra.job_logging.handlers={x:{class:logging.FileHandler,filename:hacked}}",
        "hydra.job_logging cannot be changed",
    ),
    "logging of Hydra": ("hydra/hydra_logging=default", "hydra.hydra_logging cannot be changed"),
    "rerun": ("--experimental-rerun=evil.pickle", "--experimental-rerun is not used here: it unpickles a file"),
    "rerun, shortened": ("--exp evil.pickle", "--experimental-rerun is not used here"),
    "another config": ("--config-name=evaluate", "--config-name is not used here"),
    "another folder of configs": ("-cp /tmp", "--config-path is not used here"),
    "files of Hydra over those of the user": ("hydra.output_subdir=.", "hydra.output_subdir must be null, given '.'"),
    "files of Hydra elsewhere": (
        "hydra.run.dir=hacked hydra.output_subdir=.",
        "hydra.run.dir must be ., given 'hacked'",
    ),
    "a sweep elsewhere": ("-m seed=1,2 hydra.sweep.dir=hacked", "hydra.sweep.dir must be runs/${sweep.name}"),
    "a job elsewhere": ("-m seed=1,2 hydra.sweep.subdir=../hacked", "hydra.sweep.subdir must be ."),
}


@pytest.mark.parametrize("case", LINES)
def test_a_pasted_command_line_runs_nothing(programs, tmp_path, case):
    line, expected = LINES[case]
    write_hostile_pickle(tmp_path)
    ended = programs.run("train", *line.split(" "), cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert expected in ended.last_line, ended.printed
    assert [path.name for path in tmp_path.iterdir()] == ["evil.pickle"]


RECIPE = """# @package _global_
# {name}
defaults:
  - digits/transformer_ctc
{more}
"""
YAMLS = {
    "a callback of Hydra": ("hydra:\n  callbacks:\n    x: {_target_: os.mkdir, path: hacked}", HYDRA),
    "our table as callback": (
        "hydra:\n  callbacks:\n    x: {_target_: asr.cli.sweeps.table.SweepTable}",
        "changes hydra.callbacks",
    ),
    "the environment": (
        "hydra:\n  job:\n    env_set: {PYTHONPATH: evil}",
        "only a command line may set",
    ),
    "logging that builds": ("hydra:\n  job_logging:\n    handlers: {x: {(): os.mkdir, path: hacked}}", HYDRA),
    "logging": (
        "hydra:\n  job_logging:\n    handlers: {x: {class: logging.FileHandler, filename: hacked}}",
        "hydra.job_logging cannot be changed",
    ),
    "a tag": ("seed: !!python/object/apply:os.mkdir [hacked]", "python/object/apply"),
}


@pytest.fixture
def recipes(tmp_path) -> Path:
    folder = tmp_path / "theirs" / "mine"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("case", YAMLS)
def test_a_yaml_alone_in_recipes_dir_runs_nothing(programs, recipes, tmp_path, case):
    more, expected = YAMLS[case]
    (recipes / "x.yaml").write_text(RECIPE.format(name=case, more=more))
    ended = programs.run("train", "recipes_dir=theirs", "recipe=mine/x", cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert expected in ended.printed.split("name only what you trust\n")[1], ended.printed
    assert "Traceback" not in ended.printed
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


@pytest.mark.parametrize("case", YAMLS)
@pytest.mark.parametrize("swept", ["recipe=mine/x,mine/y", "recipe=choice(mine/x)"])
def test_a_yaml_that_is_swept_runs_nothing_either(programs, recipes, tmp_path, case, swept):
    more, expected = YAMLS[case]
    for name in "xy":
        (recipes / f"{name}.yaml").write_text(RECIPE.format(name=case, more=more))
    ended = programs.run("train", "-m", "recipes_dir=theirs", swept, cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert expected in ended.printed, ended.printed
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


FOREIGN = {
    "the environment": ("hydra: {job: {env_set: {PYTHONPATH: evil}}}", "hydra.job.env_set.PYTHONPATH"),
    "a run folder of Hydra": ("hydra: {job: {chdir: true}}", "a yaml of another folder changes hydra.job"),
    "a callback": ("hydra: {callbacks: {x: {_target_: os.mkdir, path: hacked}}}", HYDRA),
    "where data are made": ("data: {dir: elsewhere}", "a yaml of another folder changes data.dir"),
    "where a sweep is written": ("sweep: {name: ../x}", "a yaml of another folder changes sweep.name"),
    "a corpus elsewhere": (
        "defaults: [digits/transformer_ctc]\ndata: {corpus: ../../escaped}",
        "data.corpus must be a name of letters, digits",
    ),
    "an account": ("logger: {wandb: {entity: evil}}", "a yaml of another folder changes logger"),
    "a secret": ("seed: ${oc.env:HOME}", "'${oc.env:HOME}' is not allowed"),
    "a secret with an escape": ('seed: "\\x24{oc.env:HOME}"', "'${oc.env:HOME}' is not allowed"),
    "a secret by a name that is made": ("seed: ${${decoder}:HOME}", "'${${decoder}:HOME}' is not allowed"),
}


def write_group(folder: Path, group: str, content: str) -> None:
    """Write ``mine.yaml`` of a group of configs."""
    (folder / group).mkdir(parents=True)
    (folder / group / "mine.yaml").write_text(f"# @package _global_\n{content}\n")


@pytest.mark.parametrize("case", FOREIGN)
@pytest.mark.parametrize("flag", ["--config-dir theirs", "hydra.searchpath=[file://theirs]"])
def test_a_yaml_of_an_added_folder_does_not_change_hydra(programs, tmp_path, case, flag):
    content, expected = FOREIGN[case]
    write_group(tmp_path / "theirs", "recipe", content)
    ended = programs.run("train", *flag.split(" "), "recipe=mine", cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert expected in ended.last_line, ended.printed
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_a_folder_made_to_look_like_the_links_to_recipes_is_trusted_no_more(programs, recipes, tmp_path):
    """Links to ``recipes_dir`` are made in a temporary folder, which a stranger's cannot pass for."""
    (recipes / "x.yaml").write_text(RECIPE.format(name="mine", more=""))
    write_group(tmp_path / "real", "recipe", FOREIGN["where data are made"][0])
    linked = tmp_path / "werdict-recipes-linked"
    linked.mkdir()
    (linked / "recipe").symlink_to(tmp_path / "real" / "recipe")
    words = ("--config-dir=werdict-recipes-linked", "recipes_dir=theirs", "recipe=mine")
    ended = programs.run("train", *words, cwd=tmp_path, timeout_s=20)
    assert (ended.code, "recipe leads out of the folder of configs" in ended.last_line) == (2, True), ended.printed


@pytest.mark.parametrize("depth", ["", "optimizer/"])
def test_a_folder_of_configs_with_a_link_out_of_it_is_refused(programs, tmp_path, depth):
    (tmp_path / "theirs" / depth).mkdir(parents=True)
    for number in range(100):
        (tmp_path / "theirs" / depth / f"x{number}").symlink_to("/usr")
    ended = programs.run("train", "--config-dir=theirs", "seed=1", cwd=tmp_path, timeout_s=20)
    assert (ended.code, "leads out of the folder of configs, to /usr; name a folder" in ended.last_line) == (2, True)


def test_a_folder_that_is_no_folder_of_configs_is_not_read_for_minutes(programs, tmp_path):
    (tmp_path / "theirs").mkdir()
    for number in range(10_001):
        (tmp_path / "theirs" / f"{number}.txt").touch()
    ended = programs.run("train", "--config-dir=theirs", "seed=1", cwd=tmp_path, timeout_s=20)
    assert (ended.code, "holds more than 10000 files" in ended.last_line) == (2, True), ended.printed


ENDLESS = {
    "aliases": ("a: &a [1,1]\nb: &b [*a,*a]\nseed: 1", "it has aliases"),
    "depth": ("seed: " + "[" * 500 + "]" * 500, "nested deeper than 50"),
    "itself": ("defaults: [_self_, mine]", ""),
    "references": (
        "\n".join(["data: {corpus: x}", "a0: xxxxxxxx"] + [f"a{i}: ${{a{i - 1}}}${{a{i - 1}}}" for i in range(1, 30)]),
        "without end",
    ),
    "references that grow": (
        "\n".join(
            ["data: {corpus: x}", f"a0: {'x' * 2**19}"] + [f"a{i}: ${{a{i - 1}}}${{a{i - 1}}}" for i in range(1, 14)]
        ),
        "without end",
    ),
    **{
        kind: (content, "mine.yaml is not plain YAML: line 2: it has a number of")
        for kind, content in {
            "a number of base 60": "seed: " + "59:" * 2**16 + "59",
            "a number": "seed: " + "1" * 5000,
            "a number in a list": "data: {limits: [1, " + "1" * 5000 + "]}",
            "a hexadecimal number": "seed: 0x" + "f" * 5000,
            "a number with underscores": "seed: " + "1_" * 5000 + "1",
            "a fraction": "seed: " + "1" * 5000 + ".5e+3",
            "a day": "seed: 2026-01-01 00:00:00." + "1" * 5000,
            "a number as a key": "? " + "1" * 5000 + "\n: 1",
        }.items()
    },
    "a number in quotes": ("seed: '" + "1" * 5000 + "'", ""),
    "a number with an exponent": ("seed: " + "1" * 5000 + "e5", ""),
}


SMALL_BOUNDS = {"asr.cli.config.bounds.MAX_CPU_S": 0.5, "asr.cli.config.options.MAX_RESOLVED_BYTES": 2**27}


@pytest.mark.parametrize("case", ENDLESS)
@pytest.mark.parametrize("group", ["optimizer", "recipe"])
def test_a_yaml_without_end_is_refused(programs, tmp_path, case, group):
    content, expected = ENDLESS[case]
    write_group(tmp_path / "theirs", group, content)
    words = ("--config-dir", "theirs", f"{group}=mine")
    # a choice of an optimizer is refused by the bounds of every user, which takes seconds
    constants = SMALL_BOUNDS if group == "recipe" else {}
    ended = programs.run("train", *words, cwd=tmp_path, timeout_s=20, constants=constants)
    assert ended.code == 2, ended.printed
    assert "Traceback" not in ended.printed
    assert expected in ended.last_line, ended.printed


SWEEPS = {
    "run_dir=a,b": "jobs of a sweep get folders of their own",
    "run_dir=a seed=1,2": "jobs of a sweep get folders of their own",
    "resume=a,b": "jobs of a sweep get folders of their own",
    "seed=range(1,1000000000)": "at most 10000 values",
    "sweep.name=../../x seed=1,2": "sweep.name must be",
    "recipe=glob(nothing/*)": "the sweep has no job",
}


@pytest.mark.parametrize("line", SWEEPS)
def test_a_sweep_that_cannot_be_is_refused(programs, tmp_path, line):
    ended = programs.run("train", "-m", *line.split(" "), "logger=none", cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert SWEEPS[line] in ended.last_line, ended.printed
    assert not any(path.name in ("a", "b", "x") for path in tmp_path.rglob("*"))


@pytest.fixture(scope="module")
def refused_job(programs, tmp_path_factory) -> tuple[Path, Ended]:
    """Return the folder of a sweep, with how it ended: its one job is refused.

    The folder has a name that needs quotes everywhere, and holds code that a job must not import.
    """
    folder = tmp_path_factory.mktemp("sweep") / "a\nb, {c}=d"
    for group, parent, content in (("optimizer", "adamw", "lr: -1"), ("schedule", "constant", "warmup_steps: 3")):
        place = folder / f"their {group}" / group
        place.mkdir(parents=True)
        (place / "mine.yaml").write_text(f"defaults: [{parent}]\n{content}\n")
    (folder / "yaml.py").write_text("open('hacked', 'w')")
    places = ("--config-dir=their optimizer", "hydra.searchpath=['their schedule']")
    words = ("optimizer=mine", "schedule=mine", "seed=1", "logger=none", "sweep.name=x")
    return folder, programs.run("train", "-m", *places, *words, cwd=folder)


def test_jobs_of_a_sweep_find_the_configs_of_added_folders(refused_job):
    _, ended = refused_job
    assert "asr-train: optimizer: lr must be a number" in ended.printed, ended.printed
    assert "1 jobs: 0 finished" in ended.last_line


def test_recipes_and_another_folder_of_configs_are_found_together(programs, recipes, tmp_path):
    (recipes / "x.yaml").write_text(RECIPE.format(name="mine", more=""))
    folder = tmp_path / "it's" / "optimizer"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("defaults: [adamw]\nlr: -1\n")
    words = ("recipes_dir=theirs", "recipe=mine/x", "optimizer=mine")
    for flag in ("--config-dir=it's", 'hydra.searchpath=["it\'s"]'):
        ended = programs.run("train", *words, flag, cwd=tmp_path)
        assert (ended.code, "lr must be a number" in ended.last_line) == (2, True), ended.printed


NOT_YAML = {
    "no UTF-8": (b"seed: 1\nrun_dir: \xff\n", "line 2: it is not UTF-8 (invalid start byte)"),
    "a tab": (b"seed: 1\ndata:\n\tdir: x\n", "line 3: found character that cannot start any token"),
    "a list that does not end": (b"seed: 1\na: [1, 2\nb: 3\n", "line 3: did not find expected"),
    "no indentation": (b"seed: 1\na:\n  b: 1\n c: 2\n", "line 4: did not find expected key"),
    "a control character": (b"seed: 1\nrun_dir: \x01\n", "line 2: control characters are not allowed"),
}


NOT_PLAIN = {
    "a tag of Python": ("lr: !!python/object/apply:os.mkdir [hacked]", "line 1: could not determine a constructor"),
    "a list as a key": ("? [a, b]\n: 1", "line 1: found unhashable key"),
    "a key twice": ("lr: 1\nlr: 2", "line 2: found duplicate key lr"),
    "bytes that are none": ("lr: !!binary x", "line 1: failed to decode base64 data"),
}


@pytest.mark.parametrize(("content", "said"), NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_a_yaml_of_more_than_plain_values_is_refused_in_one_line(programs, tmp_path, content, said):
    (tmp_path / "theirs" / "optimizer").mkdir(parents=True)
    file = tmp_path / "theirs" / "optimizer" / "mine.yaml"
    file.write_text(content)
    ended = programs.run("train", "--config-dir=theirs", "optimizer=mine", cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert ended.last_line.startswith(f"asr-train: {file}: {said}"), ended.printed
    assert "allowed are keys of text, each once" in ended.last_line


def test_a_flag_whose_value_may_be_missing_keeps_the_overrides_around_it(programs, tmp_path):
    for words in (("seed=2", "--info", "searchpath"), ("-i", "searchpath", "seed=2")):
        ended = programs.run("train", *words, cwd=tmp_path, timeout_s=20)
        assert (ended.code, "| schema " in ended.printed) == (0, True), ended.printed
    ended = programs.run("train", "seed=2", "--info", "optimizer.lr=0.5", cwd=tmp_path, timeout_s=20)
    assert (ended.code, "lr: 0.5" in ended.printed) == (0, True), ended.printed


@pytest.mark.parametrize(("content", "said"), NOT_YAML.values(), ids=NOT_YAML)
@pytest.mark.parametrize("place", ["recipes_dir=theirs", "--config-dir=theirs"])
def test_a_yaml_that_cannot_be_read_is_named_with_its_line(programs, recipes, tmp_path, content, said, place):
    (recipes / "x.yaml").write_bytes(content)
    ended = programs.run("train", place, "recipe=mine/x", cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    assert f"mine/x.yaml is not plain YAML: {said}" in ended.last_line, ended.printed
    assert "Traceback" not in ended.printed


# command, words, parts of the last line; RUN stands for the folder of a finished run
NONSENSE = {
    "a flag between overrides": ("train", ["seed=1", "--config-dir", ".", "optimizer.lrr=2"], ["no key 'lrr'"]),
    "another folder for a resumed run": ("train", ["resume=RUN", "run_dir=x"], ["run_dir: a resumed run continues in"]),
    "a speed that takes a huge filter": (
        "train",
        ["augment=speed_specaugment", "augment.audio.factors=[1.0001]"],
        ["at most two decimals", "[1.0001]"],
    ),
    "a part of a validation": ("train", ["+trainer.limit_val_batches=0.01"], ["a whole number of batches", "0.01"]),
    "devices of a CPU as a list": ("train", ["trainer.devices=[0,1]"], ["trainer.devices must be", "[0, 1]"]),
    "a long tag": (
        "train",
        ["logger=wandb", f"logger.wandb.tags=[{'x' * 65}]"],
        ["logger.wandb.tags", "64"],
    ),
    "several folders of recipes": ("train", ["recipes_dir=a,b"], ["recipes_dir=a,b", "the name of one folder"]),
    "a list of folders of recipes": ("train", ["recipes_dir=[a]"], ["recipes_dir=[a]", "the name of one folder"]),
    "no folder of recipes": ("train", ["recipes_dir="], ["recipes_dir=", "the name of one folder"]),
    "a mode of Hydra": ("train", ["hydra.mode=x"], ["hydra.mode", "'x'", "RUN, MULTIRUN"]),
    "no sweep of Hydra": ("train", ["-m", "hydra.sweep=null", "seed=1,2"], ["hydra.sweep must not be null"]),
    "no run of Hydra": ("train", ["hydra.run.dir=null"], ["hydra.run.dir must not be null"]),
    "no launcher": ("train", ["-m", "hydra.launcher=null", "seed=1,2"], ["hydra.launcher must hold _target_", "None"]),
    "a number as sweeper": ("train", ["-m", "hydra.sweeper=5", "seed=1,2"], ["hydra.sweeper must hold _target_", "5"]),
    "a number as callback": ("train", ["hydra.callbacks.sweep_table=5"], ["hydra.callbacks.sweep_table must hold"]),
    "batches of no job": (
        "train",
        ["-m", "hydra.sweeper.max_batch_size=0", "seed=1,2"],
        ["hydra.sweeper.max_batch_size", "at least 1", "0"],
    ),
    "a number as verbosity": ("train", ["hydra.verbose=5"], ["hydra.verbose must be true, false", "5"]),
    "another current folder": ("train", ["hydra.job.chdir=true"], ["hydra.job.chdir must be false"]),
    "no such setting of Hydra": ("train", ["hydra.nothing=5"], ["hydra.nothing", "--cfg hydra shows all"]),
    "no such choice of Hydra": ("train", ["hydra/output=x"], ["hydra/output/x", "default"]),
    "a searchpath that is not there": ("train", ["hydra.searchpath=[nowhere]"], ["a list of folders that exist"]),
    "a number as searchpath": ("train", ["hydra.searchpath=5"], ["a list of folders that exist"]),
    "two searchpaths": ("train", ["hydra.searchpath=[.]", "hydra.searchpath=[/]"], ["give hydra.searchpath once"]),
    "an empty name as folder of configs": (
        "train",
        ["--config-dir", "", "seed=1"],
        ["--config-dir: there is no folder ''"],
    ),
    "a part that is not there": (
        "train",
        ["--cfg", "job", "-p", "nope.nope"],
        ["--package nope.nope: the config has no such part", "Allowed: data, tokenizer"],
    ),
    "a part of no config": ("train", ["-p", "data"], ["--package is for --cfg"]),
    "no such kind of config": ("train", ["--cfg", "nope"], ["argument --cfg/-c: invalid choice: 'nope'"]),
    "the config of a sweep": (
        "train",
        ["-m", "seed=1,2", "--cfg", "job"],
        ["-m and --cfg cannot be given together: a sweep has no single config"],
    ),
    "two flags of Hydra": ("train", ["--cfg", "job", "--info"], ["--cfg and --info cannot be given together; keep"]),
    "no such folder of configs": ("train", ["--config-dir=nowhere"], ["--config-dir: there is no folder 'nowhere'"]),
    "a group removed and used": ("train", ["~data", "data.dir=x"], ["data"]),
    "a group removed and made": ("train", ["~data", "+data.dir=x"], ["~data: data is missing then"]),
    "removed with another value": ("train", ["~seed=5"], ["'seed' is 1 and not 5"]),
    "a sweep without -m": ("train", ["seed=1,2"], ["seed=1,2: several values are a sweep, which -m asks for"]),
    "interpolations in interpolations": (
        "train",
        ["seed=" + "${" * 3000 + "x" + "}" * 3000],
        ["seed", "deeper than 50"],
    ),
    "lists in lists": ("train", ["seed=" + "[" * 3000 + "]" * 3000], ["seed", "deeper than 50"]),
    "lists that do not end": ("train", ["seed=" + "[" * 3000], ["seed", "deeper than 50"]),
    "a long value": ("train", [f"seed={'a' * 100_000}"], ["seed", "100000 characters", "at most 50000"]),
    "a long choice": ("train", [f"optimizer={'a' * 40_000}"], ["optimizer=aaa", "Allowed", "adamw"]),
    "a choice elsewhere": ("train", ["encoder=../encoder/conformer_s"], ["there is no such encoder", "conformer_s"]),
    "a choice at the root": ("train", ["encoder=/tmp/x"], ["there is no such encoder", "conformer_s"]),
    "a group elsewhere": ("train", ["encoder/../head=ctc"], ["encoder/../head=ctc", "cannot be read as KEY=VALUE"]),
    "a key where none can be": ("train", ["decoder.x=5"], ["no key 'x' in decoder", "Allowed: none"]),
    "a long key": ("train", [f"{'a' * 100_000}=1"], ["a key of 100000 characters"]),
    "a long flag": ("train", [f"--{'a' * 100_000}"], ["a key of 100002 characters"]),
    "many words": ("train", ["seed=1"] * 3000, ["3000 words", "at most 2000"]),
    "a quote that does not end": ("train", ["run_dir='a b"], ["run_dir='a b", "cannot be read as KEY=VALUE"]),
    "a sweep of another command": ("evaluate", ["hydra.mode=MULTIRUN", "run=RUN"], ["-m is for sweeps of asr-train"]),
    "files of Hydra's own": ("transcribe", ["hydra.output_subdir=.", "run=RUN"], ["hydra.output_subdir must be null"]),
    "a group of another command": ("evaluate", ["head=ctc"], ["head: asr-evaluate has no group head.", ": decoder."]),
    "a group of another command, without choice": ("transcribe", ["head.x=1"], ["head: asr-transcribe has no group"]),
    "a group of a command without any": ("lm", ["decoder=ctc_beam"], ["asr-lm has no group decoder. Its groups: none"]),
    "a list as run": ("evaluate", ["run=[a]"], ["run must be", "['a']"]),
    "a mapping as run": ("transcribe", ["run={a:1}", "audio=x"], ["run must be", "{'a': 1}"]),
    "null as run": ("evaluate", ["run=null"], ["run must be", "None"]),
    "nothing as run": ("evaluate", ["run="], ["run must be", "''"]),
    "a number as run": ("evaluate", ["run=5"], ["run: '5' is neither"]),
    "no run": ("evaluate", [], ["run must be given: run=…"]),
    "a list as name": ("evaluate", ["run=RUN", "name=[a]"], ["name must be", "['a']"]),
    "a long name": ("evaluate", ["run=RUN", f"name={'n' * 300}"], ["name must be a name of at most 100 bytes"]),
    "a path as name": ("evaluate", ["run=RUN", "name=../x"], ["name must be", "'../x'"]),
    "a list as manifest": ("evaluate", ["run=RUN", "manifest=[a]"], ["manifest: there is no file or folder 'a'"]),
    "a list in a list as manifest": ("evaluate", ["run=RUN", "manifest=[[a]]"], ["manifest must be", "[['a']]"]),
    "a truth as manifest": ("evaluate", ["run=RUN", "manifest=true"], ["manifest must be", "True"]),
    "text as seconds": (
        "evaluate",
        ["run=RUN", "batch_duration_s=x"],
        ["batch_duration_s must be a finite number", "'x'"],
    ),
    "endless seconds": ("evaluate", ["run=RUN", "batch_duration_s=inf"], ["batch_duration_s must be a finite number"]),
    "no seconds": (
        "evaluate",
        ["run=RUN", "batch_duration_s=0"],
        ["batch_duration_s must be a finite number above 0, given 0"],
    ),
    "a value of a group that is missing": (
        "train",
        ["data.prepare=???"],
        ["data.prepare must be given: data.prepare=…"],
    ),
    "a sweep elsewhere": ("compare", ["sweep=../x"], ["sweep must be letters, digits and _ . + -", "'../x'"]),
    "no jobs at a time": (
        "train",
        ["-m", "seed=1,2", "hydra/launcher=parallel", "hydra.launcher.n_jobs=0"],
        ["hydra.launcher.n_jobs must be a whole number of at least 1", "given 0"],
    ),
    "no number of jobs at a time": (
        "train",
        ["-m", "seed=1,2", "hydra/launcher=parallel", "hydra.launcher.n_jobs=null"],
        ["hydra.launcher.n_jobs must be a whole number of at least 1", "given None"],
    ),
    "a truth as seconds": ("evaluate", ["run=RUN", "batch_duration_s=true"], ["batch_duration_s must be a finite"]),
    "text as workers": ("transcribe", ["run=RUN", "audio=x", "num_workers=x"], ["num_workers must be a whole", "'x'"]),
    "a mapping for a list": ("transcribe", ["run=RUN", "audio=[a]", "++audio={a:1}"], ["audio: it is a list, given a"]),
    "a list for a mapping": (
        "train",
        ["recipe=digits/transformer_ctc", "++trainer=[1]"],
        ["trainer=[1]: there is no such trainer"],
    ),
    "Hydra removed": ("train", ["recipe=digits/transformer_ctc", "~hydra"], ["~hydra: what Hydra needs cannot be"]),
    "a setting of Hydra removed": ("train", ["~hydra.run"], ["~hydra.run: what Hydra needs cannot be removed"]),
    "a mapping as audio": ("transcribe", ["run=RUN", "audio={a:1}"], ["audio must be", "{'a': 1}"]),
    "null in audio": ("transcribe", ["run=RUN", "audio=[a,null]"], ["audio must be", "['a', None]"]),
    "a truth as output": ("transcribe", ["run=RUN", "audio=x", "output=true"], ["output must be", "True"]),
    "a list as baseline": ("compare", ["runs=RUN", "baseline=[a]"], ["baseline must be a name, or null", "['a']"]),
    "a mapping as baseline": (
        "compare",
        ["runs=RUN", "baseline={a:1}"],
        ["baseline must be a name, or null", "{'a': 1}"],
    ),
    "a number as baseline": ("compare", ["runs=RUN", "baseline=5"], ["baseline must be a name, or null", "5"]),
    "an interval that is swept": (
        "train",
        ["-m", "optimizer.lr=interval(0.001,0.1)"],
        ["optimizer.lr=interval(0.001,0.1): a sweep lists its values, as in -m optimizer.lr=A,B"],
    ),
    "a truth as sweep": ("compare", ["sweep=true"], ["sweep must be", "True"]),
    "a number as sweep": ("compare", ["sweep=5"], ["sweep: no folder 'runs/5'"]),
    "lists in runs": ("compare", ["runs=[[a]]"], ["runs must be", "[['a']]"]),
    "a number as logger": ("compare", ["runs=RUN", "+logger.wandb=5"], ["logger must be", "{'wandb': 5}"]),
    "a list as run_dir": ("prepare", ["run_dir=[a]"], ["run_dir must be", "['a']"]),
}


@pytest.mark.parametrize(("command", "words", "parts"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_in_one_line(small_run, tmp_path, command, words, parts):
    words = [word.replace("RUN", str(small_run.run_dir)) if word.endswith("=RUN") else word for word in words]
    ended = small_run.programs.run(command, *words, cwd=tmp_path, timeout_s=20)
    assert ended.code == 2, ended.printed
    lines = [line for line in ended.printed.splitlines() if "HYDRA_FULL_ERROR=1 shows" not in line]
    assert len(lines) == 1, ended.printed
    assert lines[0].startswith(f"asr-{command}: ")
    assert len(lines[0]) < 2000
    for part in parts:
        assert part in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_every_key_of_a_command_for_decoding_or_comparing_has_a_kind():
    # these say themselves what they allow
    own = {"weights", "average_since", "torch_threads"}
    for command in ("evaluate", "transcribe", "lm", "compare"):
        config = yaml.safe_load((config_folder(command) / f"{command}.yaml").read_text(encoding="utf-8"))
        groups = {key for item in config["defaults"] if isinstance(item, dict) for key in item if " " not in key}
        assert (config.keys() | groups) - {"defaults", "hydra"} - own == KINDS[command].keys()


def test_children_import_nothing_from_the_current_folder(refused_job):
    folder, ended = refused_job
    assert "1 jobs: 0 finished" in ended.printed, ended.printed
    assert not (folder / "hacked").exists()


def test_a_sweep_runs_in_a_folder_of_any_name(refused_job):
    folder, ended = refused_job
    assert "asr-train: optimizer: lr must be a number" in ended.printed, ended.printed
    assert len(list((folder / "runs" / "x" / "jobs").glob("*.json"))) == 1


def test_a_variable_of_the_launcher_is_not_obeyed_from_elsewhere(programs, tmp_path):
    (tmp_path / "precious").mkdir()
    words = ("logger=none", "trainer.max_steps=1")
    ended = programs.run("train", *words, cwd=tmp_path, environment={"WERDICT_RUN_DIR": str(tmp_path / "precious")})
    assert (ended.code, ended.last_line) == (
        2,
        f"asr-train: the variable WERDICT_RUN_DIR={tmp_path}/precious is only for this program itself; unset it",
    )


@pytest.mark.parametrize("name", ["wandb/settings", ".wandb/settings", "elsewhere/wandb/settings"])
@pytest.mark.parametrize("folder", [None, "elsewhere"])
def test_a_server_that_the_current_folder_names_is_not_sent_the_key(tmp_path, monkeypatch, name, folder):
    (tmp_path / name).parent.mkdir(parents=True)
    if folder is None and name.startswith("elsewhere"):
        pytest.skip("wandb reads nothing there")
    if folder is not None:
        monkeypatch.setenv("WANDB_DIR", str(tmp_path / folder))
    (tmp_path / name).write_text("[default]\nmode = online\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    with pytest.raises(ValueError, match="says where wandb sends numbers, or how: 'base_url = "):
        chosen_mode("auto")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert chosen_mode("auto") == "online"


@pytest.mark.parametrize(
    "line", ["entity: evil", "https_proxy=http://evil", "insecure_disable_ssl = true", "root_dir=/"]
)
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_an_account_or_proxy_that_the_current_folder_names_is_not_used(tmp_path, monkeypatch, line, mode):
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text(f"; a comment\n[default]\n{line}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=f"says where wandb sends numbers, or how: '{line}'"):
        chosen_mode(mode)


def test_code_in_recipes_dir_is_announced_first(programs, recipes, tmp_path):
    (recipes / "x.yaml").write_text(RECIPE.format(name="mine", more=""))
    words = ("recipes_dir=theirs", "recipe=mine/x", "trainer.max_steps=0")
    printed = programs.run("train", *words, cwd=tmp_path).printed
    assert printed.splitlines()[0] == (
        f"recipes_dir: runs the Python code in {tmp_path}/theirs; name only what you trust"
    )
    assert "runs the Python code in that folder" in programs.run("train", "--help", cwd=tmp_path).printed


MARKUP = ("[/bold]", "[red]", "[link=x]y[/link]", ":boom:", "\x1b]0;title\x07", "\x1b[2J", "a\rb")


@pytest.mark.parametrize("name", MARKUP)
def test_text_of_users_is_shown_as_it_stands(programs, tmp_path, name):
    words = (f"resume='{name}'", f"run='{name}'", f"audio='{name}'")
    for command, word in zip(("train", "evaluate", "transcribe"), words, strict=True):
        more = ("run=x",) if command == "transcribe" else ()
        printed = programs.run(command, word, *more, cwd=tmp_path).printed
        assert "Traceback" not in printed
        assert name.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\r", "\\r") in printed
        assert not set(printed) & {"\x1b", "\x07", "\r"}
