// Which pictures are asked about when: a few at a time, one request after the other, until done or stopped.

import { predict, Refused, Unreachable } from "./server.js";
import { megabytes } from "./words.js";

const FEW = 4;
const HEAD = 1024; // bytes at most that a request says of each picture
const TRIES = 3; // of one picture whose row says that the server was busy
const EVERYBODY = [401, 429, 503]; // no to whoever asks, whatever the picture

export class Queue {
  // limits: the server's {bytes, pictures}; changed(picture) after each change of one; moved() after anything else.
  constructor(limits, changed, moved) {
    this.limits = limits ?? {};
    this.changed = changed;
    this.moved = moved;
    this.pictures = [];
    this.wait = 0; // seconds until the next try at a busy server
    this.halted = null; // why everything stands still: {sentence, status}
    this.running = false;
    this.request = null; // what stops the request under way
  }

  get done() {
    return this.pictures.filter((picture) => ["answered", "failed"].includes(picture.state)).length;
  }

  get waiting() {
    return this.pictures.filter((picture) => picture.state === "waiting");
  }

  add(pictures) {
    for (const picture of pictures) {
      this.pictures.push(picture);
      const most = this.limits.bytes;
      if (most && picture.file.size > most) {
        const size = megabytes(picture.file.size);
        this.fail(picture, `This file has ${size}, and the server takes at most ${megabytes(most)}.`);
      } else {
        this.turn(picture, "waiting");
      }
    }
    return this.goOn();
  }

  again(picture) {
    this.turn(picture, "waiting");
    return this.goOn();
  }

  async goOn() {
    if (this.running) return;
    this.running = true;
    this.halted = null;
    for (let few = this.next(); few.length && !this.halted; few = this.next()) await this.askAbout(few);
    this.running = false;
    this.moved();
  }

  stop() {
    this.request?.abort();
  }

  clear() {
    this.pictures = [];
    this.stop();
    this.halted = null;
    this.moved();
  }

  // The next few that wait; one that was refused among others is asked about alone.
  next() {
    const [first, ...others] = this.waiting;
    if (!first || first.alone) return first ? [first] : [];
    const few = [first];
    let bytes = first.file.size + HEAD;
    const most = Math.min(FEW, this.limits.pictures || FEW);
    for (const picture of others) {
      bytes += picture.file.size + HEAD;
      if (few.length >= most || picture.alone || (this.limits.bytes && bytes > this.limits.bytes)) break;
      few.push(picture);
    }
    return few;
  }

  async askAbout(few) {
    const request = new AbortController();
    this.request = request;
    for (const picture of few) this.turn(picture, "asking");
    this.moved();
    try {
      const rows = await predict(few, request.signal, (seconds) => this.waits(seconds));
      few.forEach((picture, place) => this.take(picture, rows[place]));
    } catch (problem) {
      this.refused(few, problem, request.signal.aborted);
    }
    this.wait = 0;
    this.request = null;
    this.moved();
  }

  take(picture, row) {
    if (EVERYBODY.includes(row.status) && (picture.tries ?? 0) < TRIES) {
      picture.tries = (picture.tries ?? 0) + 1; // its decoding process died, or the server was full: not its fault
      picture.alone = true;
      this.turn(picture, "waiting");
    } else if ("error" in row) {
      this.fail(picture, row.error);
    } else {
      const { notes, mask, ...columns } = row;
      picture.row = columns;
      picture.mask = mask;
      picture.classes = null;
      picture.notes = notes ?? [];
      this.turn(picture, "answered");
    }
  }

  refused(few, problem, stopped) {
    if (!this.pictures.includes(few[0])) return; // removed in the meantime
    const everybody = problem instanceof Unreachable || EVERYBODY.includes(problem.status);
    if (stopped || everybody) {
      this.halted = stopped ? { sentence: "", status: 0 } : { sentence: problem.message, status: problem.status ?? 0 };
    } else if (few.length === 1) {
      this.fail(few[0], problem instanceof Refused ? problem.message : `The answer cannot be read: ${problem.message}`);
      return;
    }
    for (const picture of few) {
      picture.alone = !this.halted;
      this.turn(picture, "waiting");
    }
  }

  fail(picture, sentence) {
    picture.error = sentence;
    this.turn(picture, "failed");
  }

  turn(picture, state) {
    picture.state = state;
    this.changed(picture);
  }

  waits(seconds) {
    this.wait = seconds;
    this.moved();
  }
}
