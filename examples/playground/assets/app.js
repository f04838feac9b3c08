// Connects the two parts of the page.

import { startComparison } from "./compare.js";
import { startLive } from "./live.js";

let comparison = null;
let timer = null;
const live = startLive(() => {
  // The comparison follows the requests, at most once a second.
  if (comparison?.followsLive()) timer ??= setTimeout(() => { timer = null; comparison.update(); }, 1000);
});
comparison = startComparison((window) => live.trace(window));
