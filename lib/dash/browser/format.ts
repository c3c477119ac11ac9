/** Numbers, times and untrusted texts, as they are shown. */

/** Three significant digits. */
export function figure(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 0.001) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(3)));
}

/** "1 update", "48 updates". */
export function counted(count: number, what: string): string {
  return `${figure(count)} ${what}${count === 1 ? "" : "s"}`;
}

export function percent(probability: number): string {
  const value = probability * 100;
  return `${value >= 10 ? value.toFixed(0) : value >= 0.1 ? value.toFixed(1) : value.toFixed(2)} %`;
}

export function share(value: number | null): string {
  return value === null ? "–" : value.toFixed(2);
}

export function duration(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  if (hours > 0) return `${hours} h ${String(minutes).padStart(2, "0")} min`;
  return minutes > 0 ? `${minutes} min ${String(whole % 60).padStart(2, "0")} s` : `${whole} s`;
}

export function ago(time: number | null): string {
  if (time === null) return "";
  const seconds = Date.now() / 1000 - time;
  if (seconds < 10) return "now";
  return seconds < 86_400
    ? `${duration(seconds).replace(/ \d+ s$/, "")} ago`
    : new Date(time * 1000).toLocaleDateString();
}

/**
 * A text with its invisible characters shown: those that change the direction of the text around
 * them, zero-width ones, and control characters other than line breaks and tabs.
 */
export function visible(text: string): string {
  return text.replace(
    // biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is replaced
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `⟨U+${character.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
}
