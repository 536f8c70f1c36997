#!/usr/bin/env python3
"""Every manifest of ours, and what our agents send to the API server, by the types of Kubernetes' own OpenAPI documents (kubernetes_types.py):
beside the schemas of deploy_test.py and sent_objects_test.py, which are written by us and stricter.

  kubernetes_types_test.py PROGRAM[=GTEST_FILTER]...

Skipped (exit status 77) where npm cannot fetch the types.
"""
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import deploy_test
import kubernetes_types

SKIPPED = 77
# Objects of operators, which are none of Kubernetes'.
OTHERS = {"monitoring.coreos.com/v1"}
PROGRAMS = []


class KubernetesTypes(unittest.TestCase):
    types = None

    def check(self, where, document, partial=False, but=frozenset()):
        with self.subTest(where=where, kind=document.get("kind")):
            problems = self.types.problems(document, partial)
            self.assertEqual([each for each in problems if not each.endswith(tuple(f".{field} does not exist" for field in but))], [])

    def test_manifests(self):
        seen = set()
        for where, document in deploy_test.Deploy().everything():
            if document["apiVersion"] in OTHERS:
                continue
            self.check(where, document)
            seen.add((document["apiVersion"], document["kind"]))
        self.assertGreaterEqual(len(seen), 15, sorted(seen))
        self.assertIn(("resource.k8s.io/v1", "DeviceClass"), seen)

    def test_converted_manifests(self):
        files = sorted((deploy_test.ROOT / "src/cli/convert/manifests").glob("*.converted.yaml"))
        self.assertGreater(len(files), 3)
        for file in files:
            for document in deploy_test.documents(file.read_text(encoding="utf-8")):
                for each in document["items"] if document["kind"] == "List" else [document]:
                    self.check(file.name, each, but={"futureField"})  # which the test of `convert` keeps as it is

    def test_what_is_sent(self):
        seen = {}
        with tempfile.TemporaryDirectory(prefix="nvs-types-") as folder:
            file = pathlib.Path(folder) / "sent"
            for argument in PROGRAMS:
                program, _, gtest_filter = argument.partition("=")
                command = [program] + ([f"--gtest_filter={gtest_filter}"] if gtest_filter else [])
                subprocess.run(command, env={**os.environ, "NVSHARE_TEST_SENT": str(file)}, stdout=subprocess.DEVNULL, check=True)
            for line in file.read_text(encoding="utf-8").splitlines():
                method, target, body = line.split(" ", 2)
                document = json.loads(body)
                self.check(f"{method} {target}", document, partial=method == "PATCH")
                seen[document["kind"]] = seen.get(document["kind"], 0) + 1
        self.assertLessEqual({"ResourceSlice", "ResourceClaim", "Event"}, set(seen), seen)

    def test_the_types_can_say_no(self):
        slices = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "a"},
                  "spec": {"driver": "gpu.nvshare.com", "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
                           "devices": [{"name": "gpu-0", "capacity": {"memory": {"value": "1Gi"}}}]}}
        self.assertEqual(self.types.problems(slices), [])
        wrong = copy.deepcopy(slices)
        wrong["spec"]["devices"][0]["capacities"] = {}
        self.assertEqual(self.types.problems(wrong), ["ResourceSlice.spec.devices[0].capacities does not exist"])
        wrong = copy.deepcopy(slices)
        wrong["spec"]["pool"]["generation"] = "1"
        self.assertEqual(self.types.problems(wrong), ["ResourceSlice.spec.pool.generation is '1', not number"])
        wrong = copy.deepcopy(slices)
        del wrong["spec"]["driver"]
        self.assertEqual(self.types.problems(wrong), ["ResourceSlice.spec.driver is missing"])
        self.assertEqual(self.types.problems(wrong, partial=True), [])
        wrong = copy.deepcopy(slices)
        wrong["kind"] = "ResourceSliver"
        with self.assertRaises(KeyError):
            self.types.problems(wrong)


def main():
    PROGRAMS.extend(sys.argv[1:])
    try:
        KubernetesTypes.types = kubernetes_types.Types()
    except kubernetes_types.NotHad as problem:
        print(f"skipped: {problem}", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
