// Why a picture is not answered, in one sentence, with the status that the server would give.

export class Refusal extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

export const truncated = (kind, length) => new Refusal(`truncated (${kind} file, ${length} bytes).`, 422);

export const damaged = (kind, why) => new Refusal(`damaged ${kind} file (${why}).`, 422);

export function checkSize(height, width, most) {
  if (Math.min(height, width) < 1) throw new Refusal(`image has no pixels (${height} x ${width}).`, 422);
  if (height * width > most) {
    const size = `${Math.round((height * width) / 1e6)} Mpx (${height} x ${width})`;
    throw new Refusal(`image is ${size}, limit ${Math.round(most / 1e6)} Mpx.`, 413);
  }
}
