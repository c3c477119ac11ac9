/** The files for launchers: their syntax, and the changes of the recipe that they make. */

import { spawnSync } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Ajv } from "ajv";
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

/** An object with exactly these fields. */
function fields(properties: Record<string, object>): object {
  return { type: "object", properties, required: Object.keys(properties), additionalProperties: false };
}
const listOf = (items: object) => ({ type: "array", items, minItems: 1 });
const word = { type: "string", minLength: 1 };
const name = { type: "string", pattern: "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" };

/** The fields that the example uses, as Kubeflow Trainer 2.2 and 2.3 define them. */
const podSpec = fields({
  containers: listOf(fields({ name, volumeMounts: listOf(fields({ name, mountPath: word })) })),
  volumes: listOf(fields({ name, persistentVolumeClaim: fields({ claimName: name }) })),
});
const inTemplates = (spec: object) => fields({ template: fields({ spec }) });
const trainJob = fields({
  apiVersion: { const: "trainer.kubeflow.org/v1alpha1" },
  kind: { const: "TrainJob" },
  metadata: fields({ name }),
  spec: fields({
    runtimeRef: fields({ name: { const: "torch-distributed" } }),
    trainer: fields({
      numNodes: { type: "integer", minimum: 1 },
      numProcPerNode: { type: "integer", minimum: 1 },
      image: word,
      command: listOf(word),
      resourcesPerNode: fields({ limits: fields({ "nvidia.com/gpu": { type: "integer" } }) }),
    }),
    runtimePatches: listOf(
      fields({
        manager: word,
        trainingRuntimeSpec: inTemplates(
          fields({
            replicatedJobs: listOf(
              fields({ name: { const: "node" }, template: fields({ spec: inTemplates(podSpec) }) }),
            ),
          }),
        ),
      }),
    ),
  }),
});

test("the TrainJob has the fields that Kubeflow defines, and mounts only volumes that it has", () => {
  const job = parse(text("trainjob.yaml"), { strict: true, uniqueKeys: true });
  const validate = new Ajv({ allErrors: true }).compile(trainJob);
  validate(job);
  expect(validate.errors).toBeNull();
  const { command, numProcPerNode, resourcesPerNode } = job.spec.trainer;
  expect(command[0]).toBe("torchrun");
  expect(resourcesPerNode.limits["nvidia.com/gpu"]).toBe(numProcPerNode);
  for (const { trainingRuntimeSpec } of job.spec.runtimePatches) {
    for (const { template } of trainingRuntimeSpec.template.spec.replicatedJobs) {
      const { containers, volumes } = template.spec.template.spec;
      const names = volumes.map((volume: { name: string }) => volume.name);
      for (const { volumeMounts } of containers)
        for (const mount of volumeMounts) expect(names).toContain(mount.name);
    }
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
