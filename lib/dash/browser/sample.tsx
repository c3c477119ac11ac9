/**
 * One sample or probe: s → a → o → d' → y, the critic beside the target, attempt and refinement.
 */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { CheckpointView, SampleView } from "../types.ts";
import { isExported, useAnswer } from "./api.ts";
import { difference } from "./diff.ts";
import { counted, figure, visible } from "./format.ts";
import { Messages, Words } from "./parts.tsx";
import { change, go, state } from "./state.ts";
import { hottest, Scale, TokenDetails, Tokens } from "./tokens.tsx";

/** Of other methods than NLAC: what an update trained on. */
const trained = /^(episode|chosen|rejected)/;
/** Facts that have a place of their own. */
const placed = ["l1", "l2", "probability", "age", "reward"];

export function Sample({
  sample,
  isProbe = false,
  place: from,
}: {
  sample: SampleView;
  isProbe?: boolean;
  /** Of a sample whose figures can be computed from a checkpoint. */
  place?: { run: string; number: number };
}) {
  const { update, trajectory, turn, texts, facts, parsed, tokens, success } = sample;
  const isComputed = from !== undefined && state.value.computed === String(from.number);
  const computed = useAnswer<CheckpointView>(isComputed ? "from-checkpoint" : undefined, {
    ...{ run: from?.run ?? "", n: from?.number ?? 0 },
  });
  const target = computed.data?.target ?? tokens.target;
  const written = state.value.t;
  const [hovered, setHovered] = useState<number | undefined>(undefined);
  const token = hovered ?? (written === undefined ? hottest(target?.l1) : Number(written));
  const select = (i: number) => {
    setHovered(i);
    go({ t: String(i) });
  };
  const when = isProbe
    ? `explained after ${counted(update, "update")}`
    : `drawn by update ${figure(update + 1)}`;
  const place = turn === null ? undefined : { episode: String(trajectory), turn: String(turn) };
  return (
    <div class="sample">
      <article>
        {!isProbe && (
          <a class="back" href={change({ n: "", t: "" })}>
            ← the list
          </a>
        )}
        <h2>
          Episode {trajectory}
          {turn !== null && `, turn ${turn + 1}`}
          {success !== null && (
            <span class={`badge ${success ? "succeeded" : "failed"}`}>
              {success ? "succeeded" : "failed"}
            </span>
          )}
        </h2>
        <p class="faint">
          {when} · L1 {fact(facts.l1)} · L2 {fact(facts.l2)}
          {facts.probability !== undefined && ` · P(i) ${fact(facts.probability)}`}
          {typeof facts.age === "number" && ` · ${counted(facts.age, "episode")} old`} · reward{" "}
          {fact(facts.reward)}
          {Object.entries(facts).map(
            ([name, value]) =>
              typeof value === "number" && !placed.includes(name) && ` · ${name} ${figure(value)}`,
          )}
        </p>
        {place && (
          <p class="links">
            <a href={change({ view: "episodes", n: String(trajectory), t: "" })}>transcript</a>
            <a href={change({ view: "history", ...place, n: "", t: "" })}>every draw of this transition</a>
          </p>
        )}
        <Part title="State s" note="the end of it">
          <Messages messages={sample.state} />
        </Part>
        <div class="pair">
          {texts.action !== undefined && (
            <Part title="Action a">
              <Words text={texts.action} />
            </Part>
          )}
          {texts.observation !== undefined && (
            <Part title="Observation o">
              <Words text={texts.observation} />
            </Part>
          )}
        </div>
        {Object.entries(texts).map(
          ([role, text]) =>
            trained.test(role) && (
              <Part key={role} title={`Trained on: ${role}`}>
                <Words text={text} />
              </Part>
            ),
        )}
        {texts.future !== undefined && (
          <Part title="Bootstrapped future d′" note="θ̄, after the observation">
            <Words text={texts.future} />
          </Part>
        )}
        {texts.target !== undefined && (
          <div class="pair">
            <Part
              title="Target y for (s, a)"
              note={
                <>
                  θ̄ saw the outcome · coloured by L1
                  {computed.data && " of the checkpoint"} {target?.l1 && <Scale values={target.l1} />}
                </>
              }
              verdict={parsed.target}
            >
              {target === undefined ? (
                <Words text={texts.target} />
              ) : (
                <Tokens view={target} by="l1" selected={token} onSelect={select} />
              )}
            </Part>
            <Part title="Critic on the same (s, a)" note="θ did not see the outcome">
              {texts.critic === undefined ? (
                <p class="faint">
                  Recorded every <code>run.detailEvery</code> updates, and for every probe.
                </p>
              ) : (
                <Words text={texts.critic} />
              )}
            </Part>
          </div>
        )}
        {dropped(facts.targetDropped, "The target was dropped")}
        {texts.attempt !== undefined && <Improvement sample={sample} />}
      </article>
      {target !== undefined && (
        <aside class={written === undefined && hovered === undefined ? "side" : "side chosen"}>
          <TokenDetails view={target} token={Math.min(token, target.pieces.length - 1)}>
            {turn !== null && from !== undefined && !isExported && (
              <Source
                {...{ update, isComputed }}
                number={from.number}
                error={computed.error}
                checkpoint={computed.data?.updates}
                isRecorded={tokens.target?.best !== undefined}
              />
            )}
          </TokenDetails>
        </aside>
      )}
    </div>
  );
}

/** Whether the figures per token are the recorded ones or those of a checkpoint, and a way to change that. */
function Source(props: {
  number: number;
  update: number;
  isComputed: boolean;
  isRecorded: boolean;
  checkpoint: number | undefined;
  error: string | undefined;
}) {
  const { number, update, isComputed, isRecorded, checkpoint, error } = props;
  if (!isComputed)
    return isRecorded ? null : (
      <button type="button" onClick={() => go({ computed: String(number) })}>
        compute them from the newest checkpoint
      </button>
    );
  return (
    <div class="warning">
      {error !== undefined ? (
        error
      ) : checkpoint === undefined ? (
        "Loading the checkpoint …"
      ) : (
        <>
          <b>Computed from the checkpoint after {counted(checkpoint, "update")}.</b> This sample was drawn by
          update {figure(update + 1)}: its own L1 and probabilities differ.
        </>
      )}
      <button type="button" class="more" onClick={() => go({ computed: "" })}>
        show the recorded figures
      </button>
    </div>
  );
}

/** Attempt, critiques and refinements, and what was trained on. */
function Improvement({ sample: { texts, facts, parsed, tokens } }: { sample: SampleView }) {
  const rounds = Object.keys(texts).filter((role) => /^critique( \d+)?$/.test(role));
  const refinements = Object.keys(texts).filter((role) => /^refinement( \d+)?$/.test(role));
  const last = refinements.at(-1);
  const { attempt = "" } = texts;
  const refined = tokens.refinement;
  return (
    <>
      <Part title="New attempt ã" note="θ, another action than a">
        <Words text={attempt} />
      </Part>
      {rounds.map((role) => (
        <Part
          key={role}
          title={`Critique of the attempt${role.slice("critique".length)}`}
          verdict={parsed[role]}
        >
          <Words text={texts[role]!} />
        </Part>
      ))}
      {last !== undefined && (
        <Part
          title="Attempt → refinement aʳ"
          note={facts.changed === false ? "unchanged" : facts.changed === true ? "changed" : ""}
        >
          <div class="words diff">
            {difference(attempt.trim(), texts[last]!.trim()).map(({ kind, text }, i) =>
              kind === "same" ? (
                visible(text)
              ) : kind === "added" ? (
                <ins key={i}>{visible(text)}</ins>
              ) : (
                <del key={i}>{visible(text)}</del>
              ),
            )}
          </div>
        </Part>
      )}
      {refined?.nll && (
        <Part
          title="Refinement aʳ after s"
          note={
            <>
              coloured by NLL under θ <Scale values={refined.nll} />
            </>
          }
        >
          <Tokens view={refined} by="nll" />
        </Part>
      )}
      {dropped(facts.refinementDropped, "The refinement was dropped")}
    </>
  );
}

function Part({
  title,
  note,
  verdict,
  children,
}: {
  title: string;
  note?: ComponentChildren;
  verdict?: { ok: boolean; yes?: boolean; reason?: string } | undefined;
  children: ComponentChildren;
}) {
  return (
    <section class="part">
      <h3>
        {title}
        {note && <small>{note}</small>}
        {verdict && (
          <span class={`badge ${verdict.ok ? (verdict.yes ? "succeeded" : "failed") : "faulty"}`}>
            {verdict.ok
              ? verdict.yes === undefined
                ? "readable"
                : verdict.yes
                  ? "Yes"
                  : "No"
              : "unreadable"}
          </span>
        )}
      </h3>
      {children}
    </section>
  );
}

function dropped(cause: unknown, text: string) {
  return typeof cause === "string" && <p class="warning">{`${text}: ${cause}.`}</p>;
}

function fact(value: unknown): string {
  return typeof value === "number" ? figure(value) : "–";
}
