/** A completion coloured by a figure per token, and the details of one token. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Best, TokenView } from "../types.ts";
import { figure, percent, visible } from "./format.ts";

/** Least value that gets the full colour, in nats: small differences should look small. */
const fullColour = 0.3;

/** Line breaks stay visible, because they are tokens too. */
function shown(piece: string): string {
  return visible(piece).replace(/\n/g, "⏎\n");
}

export function Tokens({
  view,
  by,
  selected,
  onSelect,
}: {
  view: TokenView;
  /** What colours them. */
  by: "l1" | "nll";
  selected?: number;
  onSelect?: (token: number) => void;
}) {
  const values = view[by] ?? [];
  const highest = Math.max(fullColour, ...values.map((value) => value ?? 0));
  const move = (event: KeyboardEvent) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined || selected === undefined) return;
    event.preventDefault();
    onSelect?.(Math.min(Math.max(0, selected + by), view.pieces.length - 1));
  };
  return (
    <div
      class="words tokens"
      role="listbox"
      aria-label="tokens"
      tabIndex={onSelect === undefined ? -1 : 0}
      onKeyDown={move}
      onPointerOver={(event) => {
        const token = (event.target as HTMLElement).dataset.token;
        if (token !== undefined) onSelect?.(Number(token));
      }}
    >
      {view.pieces.map((piece, i) => {
        const value = values[i] ?? 0;
        const strength = Math.sqrt(Math.max(0, value) / highest) * 0.8;
        return (
          <span
            key={i}
            role="option"
            aria-selected={i === selected}
            tabIndex={-1}
            data-token={i}
            class={i === selected ? "token on" : "token"}
            style={{ backgroundColor: `rgb(var(--hot) / ${strength.toFixed(3)})` }}
            title={`${figure(values[i] ?? null)} nats`}
          >
            {shown(piece)}
          </span>
        );
      })}
    </div>
  );
}

export function Scale({ values }: { values: readonly (number | null)[] }) {
  const highest = Math.max(fullColour, ...values.map((value) => value ?? 0));
  return (
    <span class="scale">
      0 <i /> {figure(highest)} nats
    </span>
  );
}

/** The token of the highest value. */
export function hottest(values: readonly (number | null)[] = []): number {
  let best = 0;
  for (const [i, value] of values.entries()) if ((value ?? 0) > (values[best] ?? 0)) best = i;
  return best;
}

export function TokenDetails({
  view,
  token,
  children,
}: {
  view: TokenView;
  token: number;
  /** Where the figures are from. */
  children?: ComponentChildren;
}) {
  const { pieces, l1, online, target, best } = view;
  const probability = (logProbs?: readonly (number | null)[]) => {
    const value = logProbs?.[token];
    return value === null || value === undefined ? "–" : percent(Math.exp(value));
  };
  return (
    <div class="details">
      <h3>
        Token {token + 1} of {pieces.length}
      </h3>
      <div class="words">{JSON.stringify(visible(pieces[token] ?? ""))}</div>
      <dl>
        <dt>L1</dt>
        <dd>{figure(l1?.[token] ?? null)} nats</dd>
        <dt>θ̄, which saw the outcome</dt>
        <dd>{probability(target)}</dd>
        <dt>θ, which did not</dt>
        <dd>{probability(online)}</dd>
      </dl>
      {best === undefined ? (
        <p class="faint">
          The most probable tokens are recorded for probes, and for the sample of highest L1 of every{" "}
          <code>run.detailEvery</code> updates.
        </p>
      ) : (
        <>
          <BestList title="θ̄ would generate" list={best.target[token] ?? []} written={pieces[token]} />
          <BestList title="θ would generate" list={best.online[token] ?? []} written={pieces[token]} />
        </>
      )}
      {children}
    </div>
  );
}

function BestList({
  title,
  list,
  written,
}: {
  title: string;
  list: readonly Best[];
  written: string | undefined;
}) {
  const [all, setAll] = useState(false);
  const kept = all ? list : list.filter(({ logProb }, i) => i < 3 || logProb > Math.log(0.001));
  return (
    <>
      <h3>{title}</h3>
      <table class="best">
        <tbody>
          {kept.map(({ text, logProb }, i) => (
            <tr key={i} class={text === written ? "written" : ""}>
              <td>{JSON.stringify(visible(text))}</td>
              <td>{percent(Math.exp(logProb))}</td>
              <td>
                <i style={{ width: `${Math.max(1, Math.exp(logProb) * 100)}%` }} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {kept.length < list.length && (
        <button type="button" class="more" onClick={() => setAll(true)}>
          show {list.length - kept.length} less probable
        </button>
      )}
    </>
  );
}
