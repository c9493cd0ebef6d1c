"""Set up ./.venv with this checkout and the named extras and groups; run again it does only what is missing.

    python3 scripts/setup.py [EXTRA …] [GROUP …]

pyproject.toml lists them: extras are what users may add, groups (dev, docs, bench, peers) are for work on the checkout.
`compare` alone installs what asr-compare needs for results of other toolkits: neither torch nor lhotse.

Runs on a bare Python, before anything is installed, and must be readable by old ones to tell them so.
"""

import hashlib
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "werdict-setup")
LIGHT = "compare"
LIGHT_PACKAGES = (
    *("hydra-core", "omegaconf", "pydantic", "pyyaml", "rich", "jinja2"),
    *("numpy", "scipy", "matplotlib", "jiwer", "rapidfuzz"),
)


def main(extras):
    # type: (list[str]) -> None
    """Make the environment and install into it."""
    if sys.version_info < (3, 11):
        sys.exit(
            "Python 3.11 or newer is needed, this is %s: run this script with a newer python3." % sys.version.split()[0]
        )
    if any(extra.startswith("-") for extra in extras):
        print(__doc__)
        sys.exit(0 if set(extras) <= {"-h", "--help"} else 2)
    known = {LIGHT, *settings()["project"]["optional-dependencies"], *settings()["dependency-groups"]}
    unknown = sorted(set(extras) - known)
    if unknown:
        sys.exit("No extra or group is called %s; allowed: %s." % (unknown[0], ", ".join(sorted(known))))
    installed = [name for name in installed_extras() if name in known]
    wanted = sorted(set(extras) | set(installed))
    if set(extras) != {LIGHT} or (os.path.exists(STAMP) and installed != [LIGHT]):
        wanted = [extra for extra in wanted if extra != LIGHT]  # all of it is a part of the whole
    stamp = "%s %s" % (fingerprint(), ",".join(wanted))
    if read(STAMP) == stamp:
        return
    if not os.path.exists(PYTHON) or subprocess.call([PYTHON, "-m", "pip", "--version"], stdout=subprocess.DEVNULL):
        make_environment()
    print("Installing into %s (a few minutes the first time) ..." % VENV, flush=True)
    groups = settings()["dependency-groups"]
    extras = [name for name in wanted if name not in groups]
    requirements = [one for name in wanted if name in groups for one in groups[name]]
    installs = [["--editable", ROOT + ("[%s]" % ",".join(extras) if extras else ""), *requirements]]
    if wanted == [LIGHT]:
        installs = [light_requirements(), ["--no-deps", "--editable", ROOT]]
    for words in installs:
        if subprocess.call([PYTHON, "-m", "pip", "install", "--quiet", *words]):
            sys.exit("pip could not install the packages; its message above says why.")
    with open(STAMP, "w") as file:
        file.write(stamp)


def light_requirements():
    # type: () -> list[str]
    """Return the requirements of asr-compare for results of other toolkits."""
    return [one for one in settings()["project"]["dependencies"] if re.split("[^a-z0-9-]", one)[0] in LIGHT_PACKAGES]


def settings():
    # type: () -> dict
    """Return pyproject.toml."""
    import tomllib

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        return tomllib.load(file)


def make_environment():
    # type: () -> None
    """Create the virtual environment, or say which package is missing."""
    version = "%d.%d" % sys.version_info[:2]
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        sys.exit(
            "This Python has no venv. Install it, then run this command again:\n"
            "  Debian, Ubuntu:  apt-get install python%s-venv\n"
            "  Fedora, RHEL:    dnf install python%s" % (version, version)
        )
    if subprocess.call([sys.executable, "-m", "venv", "--clear", VENV]):
        sys.exit("The virtual environment %s could not be created; the message above says why." % VENV)


def installed_extras():
    # type: () -> list[str]
    """Return the extras of the last set-up, so that another command does not drop them."""
    stamp = read(STAMP).split(" ", 1)
    return [extra for extra in stamp[-1].split(",") if extra] if len(stamp) == 2 else []


def fingerprint():
    # type: () -> str
    """Return what changes with the requirements."""
    return hashlib.sha256(read(os.path.join(ROOT, "pyproject.toml")).encode()).hexdigest()[:16]


def read(path):
    # type: (str) -> str
    """Return a text file, or an empty text if it does not exist."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.argv[1:])
