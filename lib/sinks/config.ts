/** The field `report` of a recipe: where a run's metrics, episodes and end are sent. */

import { z } from "zod";

/** A text, or "$NAME" for the environment variable NAME: run.json must not contain secrets. */
const secret = z.string().min(1);

const headers = z
  .record(z.string(), secret)
  .default({})
  .describe("Additional HTTP headers; a value such as $TOKEN is read from the environment.");

export const runEvents = ["finished", "stopped", "crashed", "collapsed"] as const;

const sinkConfig = z.discriminatedUnion("to", [
  z.strictObject({
    to: z.literal("mlflow"),
    /** The tracking server. Default: the environment variable MLFLOW_TRACKING_URI. */
    url: secret.default("$MLFLOW_TRACKING_URI"),
    /** Created if it does not exist. */
    experiment: z.string().min(1).default("nlac"),
    headers,
  }),
  z.strictObject({
    to: z.literal("wandb"),
    /** Weights & Biases' project. */
    project: z.string().min(1).default("nlac"),
    /** The user or team that has the project. Default: that of the login that uploads. */
    entity: z.string().min(1).optional(),
  }),
  z.strictObject({
    to: z.literal("trackio"),
    /**
     * A server (`trackio show`), with or without "?write_token=…". Default: $TRACKIO_SERVER_URL.
     */
    url: secret.default("$TRACKIO_SERVER_URL"),
    /** The server's write token, if `url` has none. Default: $TRACKIO_WRITE_TOKEN. */
    token: secret.default("$TRACKIO_WRITE_TOKEN"),
    project: z.string().min(1).default("nlac"),
    headers,
  }),
  z.strictObject({
    to: z.literal("otlp"),
    /** An OpenTelemetry collector that takes OTLP over HTTP; "/v1/traces" is appended. */
    url: secret.default("http://localhost:4318"),
    /** Sends prompts, completions and tool arguments too. Default false: only names and counts. */
    content: z.boolean().default(false),
    headers,
  }),
  z.strictObject({
    to: z.literal("webhook"),
    url: secret,
    /** Default: all but "stopped". */
    on: z.array(z.enum(runEvents)).min(1).default(["finished", "crashed", "collapsed"]),
    headers,
  }),
  z.strictObject({
    to: z.literal("module"),
    /** A file whose default export is a `Sink`, or a function of each row of metrics. */
    path: z.string().min(1),
  }),
]);

export type SinkConfig = z.infer<typeof sinkConfig>;

export const reportConfig = z.array(sinkConfig).default([]);
