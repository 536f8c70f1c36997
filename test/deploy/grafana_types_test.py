#!/usr/bin/env python3
"""The Grafana dashboard by the types that Grafana itself publishes of dashboards, variables, and of options and fields of each kind of panel
(npm: @grafana/schema, Apache-2.0), as TypeScript's compiler (npm: typescript, Apache-2.0) checks them: what does not exist there, has another
type or is missing. Where Grafana fills in what an option leaves out, it may be left out.

Without node, or where npm does not have the packages, it is skipped: exit status 77.
"""
import copy
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from npm_packages import NotHad, Package  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = (
    Package("@grafana/schema", "12.4.0", "UEcsY6anwBuBdDt7C9Ke00p374iiBtPYiw+m+QnnXESCPW9x+nPZCF5utDs6irao6moIJmFU2Mm7F6I81BmKlA=="),
    Package("typescript", "5.9.3", "jl1vZzPDinLr9eUt3J/t7V6FgNEw9QjvBPdysz9KfQDD41fQrC2Y4vKQdiaUpFT4bXlb1RHhLpp8wtm6M5TgSw=="),
)
OPTIONS = {"strict": True, "noEmit": True, "skipLibCheck": True, "target": "es2022", "module": "esnext", "moduleResolution": "bundler", "types": []}
HEAD = """import type * as schema from '@grafana/schema';
import type * as dashboards from './node_modules/@grafana/schema/dist/types/raw/dashboard/x/types.gen';
// JSON has the values of an enumeration of texts, not their names.
type Told<T> = T extends string ? `${T}` : T extends object ? {[K in keyof T]: Told<T[K]>} : T;
type Partly<T> = T extends string ? `${T}` : T extends Array<infer U> ? Array<Partly<U>> : T extends object ? {[K in keyof T]?: Partly<T[K]>} : T;
// What the Prometheus data source reads of a query.
type Query = Told<schema.DataQuery> & {expr: string; legendFormat?: string; instant?: boolean; range?: boolean; format?: 'time_series' | 'table'};
// Of some panels Grafana's type takes any targets, options and fields: these are checked by their own kind's.
type Panel = Omit<Told<dashboards.Panel>, 'targets' | 'options' | 'fieldConfig'>;
type Fields<Custom> = {defaults: Omit<Partly<dashboards.FieldConfig>, 'custom'> & {custom?: Custom}; overrides: []};
"""


def written(board):
    """The dashboard as a program of TypeScript."""
    lines = [HEAD]
    for kind in sorted({panel["type"] for panel in board["panels"]}):
        lines.append(f"import type * as {kind} from './node_modules/@grafana/schema/dist/types/raw/composable/{kind}/panelcfg/x/types.gen';")
    whole = {key: value for key, value in board.items() if key != "panels"}
    lines.append(f"export const board: Told<dashboards.Dashboard> = {json.dumps(whole)};")
    for panel in board["panels"]:
        of_itself = {key: value for key, value in panel.items() if key not in ("targets", "options", "fieldConfig")}
        custom = f"Partly<{panel['type']}.FieldConfig>" if panel["type"] == "timeseries" else "never"
        for name, kind, value in (("panel", "Panel", of_itself), ("targets", "Query[]", panel["targets"]),
                                  ("options", f"Partly<{panel['type']}.Options>", panel["options"]),
                                  ("fields", f"Fields<{custom}>", panel["fieldConfig"])):
            lines.append(f"export const {name}_{panel['id']}: {kind} = {json.dumps(value)};")
    return "\n".join(lines) + "\n"


class Grafana(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.board = json.loads((ROOT / "deploy/monitoring/grafana-dashboard.json").read_text())
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="nvshare-grafana")))
        for package, archive in zip(PACKAGES, ARCHIVES):
            place = cls.folder / "node_modules" / package.name
            with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
                packed.extractall(cls.folder / "unpacked")  # pinned by hash
            place.parent.mkdir(parents=True, exist_ok=True)
            (cls.folder / "unpacked/package").rename(place)
        (cls.folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "files": ["board.ts"]}))

    def wrong(self, board):
        (self.folder / "board.ts").write_text(written(board))
        done = subprocess.run(["node", "node_modules/typescript/lib/tsc.js", "-p", "tsconfig.json", "--pretty", "false"], cwd=self.folder,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode == 0, done.stdout == "", done.stdout + done.stderr)
        return done.stdout

    def test_it_is_as_grafana_declares_dashboards(self):
        self.assertEqual(self.wrong(self.board), "")

    def test_what_is_wrong_is_found(self):
        board = copy.deepcopy(self.board)
        by_kind = {panel["type"]: panel for panel in board["panels"]}
        by_kind["gauge"]["descripton"] = "Of the budget."
        board["templating"]["list"][1]["type"] = "querry"
        by_kind["stat"]["gridPos"]["w"] = "4"
        by_kind["stat"]["targets"][0]["legend"] = "GPUs"
        by_kind["timeseries"]["options"]["legend"]["displayMode"] = "lists"
        by_kind["timeseries"]["fieldConfig"]["defaults"]["custom"]["fillOpacitiy"] = 20
        by_kind["gauge"]["fieldConfig"]["defaults"]["maximum"] = 1
        problems = self.wrong(board)
        for word in ("descripton", "querry", "'string' is not assignable to type 'number'", "legend", "lists", "fillOpacitiy", "maximum"):
            self.assertRegex(problems, re.escape(word))


if __name__ == "__main__":
    if not shutil.which("node"):
        print("not run: there is no node")
        sys.exit(77)
    try:
        ARCHIVES = [package.archive() for package in PACKAGES]
    except NotHad as why:
        print(f"not run: Grafana's types are not to be had here: {why}")
        sys.exit(77)
    unittest.main()
