/** The files for launchers: their syntax, and the changes of the recipe that they make. */

import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { parse } from "yaml";
import { loadRecipe } from "../../lib/recipe/recipe.ts";

const folder = join(import.meta.dirname, "../../examples/cluster");
const files = readdirSync(folder);
const text = (file: string) => readFileSync(join(folder, file), "utf8");

test.each(files)("%s makes changes that recipes have", async (file) => {
  const changes = [...text(file).matchAll(/\b(learner\.\w+)=(\w+)/g)].map(
    ([, field, value]) => `${field}=${value}`,
  );
  expect(changes).toContain("learner.sharding=2");
  const { learner } = await loadRecipe("paper/qwen2.5-7b-tau-bench", changes);
  expect(learner).toMatchObject({ sharding: 2 });
});

test.each(files.filter((file) => file.endsWith(".sh")))("%s is a valid script", (file) => {
  expect(spawnSync("bash", ["-n", join(folder, file)]).status).toBe(0);
});

test("torchrun gets -- before the command, whose --run would be an option of its own", () => {
  for (const file of ["torchrun.sh", "skypilot.yaml", "trainjob.yaml"])
    expect(text(file).replaceAll(/[\s\\]+(- )?/g, " ")).toContain("--no-python -- npx");
});

test("the TrainJob has what Kubeflow requires, and mounts only volumes that it has", () => {
  const job = parse(text("trainjob.yaml"), { strict: true, uniqueKeys: true });
  expect(job).toMatchObject({
    apiVersion: "trainer.kubeflow.org/v1alpha1",
    kind: "TrainJob",
    metadata: { name: expect.stringMatching(/^[a-z0-9-]+$/) },
    spec: {
      runtimeRef: { name: "torch-distributed" },
      trainer: { numNodes: expect.any(Number), image: expect.any(String) },
    },
  });
  const { command, numProcPerNode, resourcesPerNode } = job.spec.trainer;
  expect(command.every((part: unknown) => typeof part === "string")).toBe(true);
  expect(command[0]).toBe("torchrun");
  expect(resourcesPerNode.limits["nvidia.com/gpu"]).toBe(numProcPerNode);
  for (const { spec } of job.spec.podTemplateOverrides) {
    const volumes = spec.volumes.map(({ name }: { name: string }) => name);
    for (const { volumeMounts } of spec.containers)
      for (const { name } of volumeMounts) expect(volumes).toContain(name);
  }
});

test("the SkyPilot task has machines, a run on shared storage, and a command", () => {
  const task = parse(text("skypilot.yaml"), { strict: true, uniqueKeys: true });
  expect(task).toMatchObject({
    name: "nlac",
    num_nodes: expect.any(Number),
    resources: { accelerators: expect.stringMatching(/^\w+:\d+$/) },
    file_mounts: { "/runs": { name: expect.any(String), mode: "MOUNT" } },
    setup: expect.stringContaining("nlac setup --cuda"),
    run: expect.stringContaining('--run "/runs/'),
  });
  for (const script of [task.setup, task.run])
    expect(spawnSync("bash", ["-n"], { input: script }).status).toBe(0);
});

const hasPython = spawnSync("python3", ["--version"]).status === 0;

test.skipIf(!hasPython).each(files.filter((file) => file.endsWith(".py")))(
  "%s compiles",
  (file) => {
    // Compiled files go elsewhere: the checkout stays clean.
    const env = { ...process.env, PYTHONPYCACHEPREFIX: mkdtempSync(join(tmpdir(), "nlac-pyc-")) };
    const { status, stderr } = spawnSync("python3", ["-m", "py_compile", join(folder, file)], { env });
    expect({ status, text: String(stderr) }).toEqual({ status: 0, text: "" });
  },
  120_000,
);

test("Slurm's tasks and Ray's set every variable that a rank reads", () => {
  for (const file of ["slurm.sh", "ray_job.py"]) {
    for (const name of ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
      expect(text(file)).toContain(name);
  }
});
