"""Collects the chat templates of published models that packages of PyPI contain.

    published_templates.py FOLDER OUT

FOLDER has the packages as pip downloads them: wheels of xinference, trl and unsloth, the source of
llama-cpp-python. OUT becomes a JSON object of names and templates.
"""

import ast
import json
import sys
import tarfile
import zipfile
from pathlib import Path


def xinference(wheel):
    for name in wheel.namelist():
        if name.startswith("xinference/model/llm/models/") and name.endswith(".json"):
            for model in json.loads(wheel.read(name)):
                yield model["model_name"], model.get("chat_template")


def constants(wheel):
    for name in wheel.namelist():
        if not name.endswith("/chat_templates.py"):
            continue
        for node in ast.walk(ast.parse(wheel.read(name))):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                try:
                    yield node.targets[0].id, ast.literal_eval(node.value)
                except ValueError:
                    pass  # assembled from other texts


def templates(path):
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(".jinja"):
                    yield Path(member.name).name, archive.extractfile(member).read().decode()
        return
    with zipfile.ZipFile(path) as wheel:
        if path.name.startswith("xinference"):
            yield from xinference(wheel)
        elif path.name.startswith("unsloth"):
            yield from constants(wheel)
        else:
            for name in wheel.namelist():
                if name.endswith(".jinja"):
                    yield Path(name).name, wheel.read(name).decode()


def main(folder, out):
    found = {}
    for path in sorted(Path(folder).iterdir()):
        package = path.name.split("-")[0]
        for name, template in templates(path):
            if isinstance(template, str) and "{" in template and "messages" in template and template not in found.values():
                found[f"{package}/{name}"] = template
    Path(out).write_text(json.dumps(found, indent=1))
    print(f"{len(found)} chat templates in {out}")


main(*sys.argv[1:])
