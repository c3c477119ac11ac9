// Crash images: the directory trees that a crash may leave behind, from a log of file operations.
//
// What may be lost. A crash happens between two operations of the log.
// 1. A file is its inode. Its writes and truncations are durable once an fsync of it has returned.
// 2. Of the later ones, the disk may have any. A page of 4096 bytes is written as it was at some
//    moment since: it has the writes to it up to then. Pages are independent of each other, so a write
//    may be torn between them.
// 3. The size covers the pieces that are there, and possibly the missing ones behind them. Missing
//    pieces of new space read as zeros.
// 4. Entries of a directory (create, link, rename, unlink, mkdir) are durable once an fsync of that
//    directory has returned. An fsync of a file or of a subdirectory does not make its own entry
//    durable.
// 5. Of the later changes of one directory a prefix may have reached the disk, as a journal keeps
//    it. A rename is one change. Directories are independent of each other: there is no order
//    between them.
// So a renamed file may be empty, and a deleted checkpoint may be removed before the new one
// exists.
//
// A killed process loses nothing that it has handed to the kernel: what it leaves behind are all
// operations up to a moment. A write that was in progress may be cut anywhere.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";

const page = 4096;

const newFile = () => ({ changes: [], synced: 0 });
const newDirectory = () => ({ entries: new Map(), changes: [], synced: 0 });

/** An empty file system. */
export const newFileSystem = newDirectory;

/**
 * The file system after the first `count` operations of `operations`, all below `root`.
 *
 * @param top the file system before, which is changed. Default: an empty one
 */
export function replay(operations, count, root, top = newDirectory()) {
  const find = (path) => {
    let node = top;
    for (const name of path.slice(root.length).split("/")) if (name !== "") node = node?.entries?.get(name);
    return node;
  };
  const change = (path, name, inode) => {
    const parent = find(dirname(path));
    parent.changes.push([[name, inode]]);
    setEntry(parent.entries, name, inode);
  };
  for (let i = 0; i < count; i++) {
    const { kind, path, second, created, truncated, offset, data } = operations[i];
    const node = find(path);
    const isNew = kind === "mkdir" || created;
    if (!isNew && node === undefined) throw new Error(`${kind} of ${path}, which was not created`);
    if (kind === "mkdir") change(path, basename(path), newDirectory());
    else if (kind === "unlink") change(path, basename(path), undefined);
    else if (kind === "link") change(second, basename(second), node);
    else if (kind === "rename") {
      const [from, to] = [find(dirname(path)), find(dirname(second))];
      if (from !== to) throw new Error(`a rename between directories: ${path} to ${second}`);
      const both = [
        [basename(path), undefined],
        [basename(second), node],
      ];
      from.changes.push(both);
      for (const [name, inode] of both) setEntry(from.entries, name, inode);
    } else if (kind === "open") {
      if (created) change(path, basename(path), newFile());
      else if (truncated) node.changes.push({ size: 0 });
    } else if (kind === "write") node.changes.push({ offset, data });
    else if (kind === "ftruncate") node.changes.push({ size: offset });
    else if (kind === "fsync") node.synced = node.changes.length;
  }
  return top;
}

function setEntry(entries, name, inode) {
  if (inode === undefined) entries.delete(name);
  else entries.set(name, inode);
}

/**
 * Writes a tree that a crash may leave of `top` into `target`, an existing directory. `random()`
 * gives numbers in [0, 1); without it everything is written, as without a crash.
 */
export function writeImage(top, target, random) {
  const kept = random === undefined ? top.changes.length : between(top.synced, top.changes.length, random);
  const entries = new Map();
  for (const change of top.changes.slice(0, kept))
    for (const [name, inode] of change) setEntry(entries, name, inode);
  for (const [name, inode] of entries) {
    const path = join(target, name);
    if (inode.entries === undefined) writeFileSync(path, contents(inode, random));
    else {
      mkdirSync(path);
      writeImage(inode, path, random);
    }
  }
}

/** A number from `low` to `high`; one of the two in half of the cases. */
function between(low, high, random) {
  const drawn = random();
  if (drawn < 0.25) return low;
  if (drawn < 0.5) return high;
  return low + Math.floor(random() * (high - low + 1));
}

function contents({ changes, synced }, random) {
  const mode = random === undefined ? 1 : random();
  if (mode < 0.25) return built(changes.slice(0, synced));
  if (mode >= 0.75) return built(changes);
  const pending = changes.slice(synced);
  if (mode < 0.5) {
    const count = Math.floor(random() * (pending.length + 1));
    return built(changes.slice(0, synced + count));
  }
  const full = built(changes).length;
  const kept = changes.slice(0, synced);
  const pieces = pending.flatMap(piecesOf);
  const counts = new Map();
  for (const { at } of pieces) counts.set(at, (counts.get(at) ?? 0) + 1);
  const reached = new Map([...counts].map(([at, count]) => [at, between(0, count, random)]));
  for (const { at, ...change } of pieces) {
    if (change.data === undefined ? random() < 0.5 : reached.get(at) > 0) kept.push(change);
    reached.set(at, reached.get(at) - 1);
  }
  const bytes = built(kept);
  return random() < 0.5 && full > bytes.length ? built([...kept, { size: full }]) : bytes;
}

/** The parts of a write in each page, with the page's number; a truncation as it is. */
function piecesOf(change) {
  if (change.data === undefined) return [{ ...change, at: "size" }];
  const pieces = [];
  for (let start = 0; start < change.data.length; ) {
    const offset = change.offset + start;
    const end = start + page - (offset % page);
    pieces.push({ offset, data: change.data.subarray(start, end), at: Math.floor(offset / page) });
    start = end;
  }
  return pieces;
}

/** The bytes of a file after its writes and truncations. */
function built(changes) {
  const ends = changes.map(({ offset, data, size }) => size ?? offset + data.length);
  const bytes = Buffer.alloc(Math.max(0, ...ends));
  let length = 0;
  for (const { offset, data, size } of changes) {
    if (data === undefined) {
      if (size < length) bytes.fill(0, size, length);
      length = size;
    } else {
      data.copy(bytes, offset);
      length = Math.max(length, offset + data.length);
    }
  }
  return bytes.subarray(0, length);
}

/**
 * Where the directory `path` differs from all that was written to `top`: a name; undefined if it
 * does not.
 */
export function differenceFrom(top, path) {
  const found = readdirSync(path, { withFileTypes: true });
  const other = found.find((entry) => top.entries.get(entry.name) === undefined);
  if (other !== undefined) return join(path, other.name);
  for (const [name, inode] of top.entries) {
    const [entry, child] = [found.find((one) => one.name === name), join(path, name)];
    if (entry === undefined || entry.isDirectory() !== (inode.entries !== undefined)) return child;
    if (entry.isDirectory()) {
      const inner = differenceFrom(inode, child);
      if (inner !== undefined) return inner;
    } else if (!readFileSync(child).equals(built(inode.changes))) return child;
  }
  return undefined;
}
