// Demonstration traffic, if the configuration of the serving node allows it: its state, and its button.

import { post } from "./api.js";
import { h, replace, setText, show } from "./dom.js";
import { actionButton, toast } from "./dialog.js";
import { count, counted } from "./format.js";

/** Builds the panel in the box; show(demo) with the member of the cluster document. */
export function demoPanel(box) {
  const words = h("p", { class: "lead" });
  const start = actionButton("Start demonstration traffic", "operator", (button) =>
    send(button, "start", "Demonstration traffic begins."),
  );
  const stop = actionButton("Stop demonstration traffic", "operator", (button) =>
    send(button, "stop", "Demonstration traffic has ended."),
  );
  replace(box, words, h("div", { class: "buttons" }, start, stop));
  return {
    show(demo) {
      show(box, Boolean(demo));
      if (!demo) return;
      show(start, !demo.running);
      show(stop, demo.running);
      setText(words, demo.running ? running(demo) : resting(demo));
    },
  };
}

function running(demo) {
  if (!demo.queues.length) return "Demonstration traffic begins: its queues are being opened.";
  return `Demonstration traffic runs on ${counted(demo.queues.length, "queue")}, started by ${demo.by}: ${count(
    demo.posted,
  )} posted, ${count(demo.confirmed)} confirmed, ${count(demo.refused)} refused.`;
}

function resting(demo) {
  if (demo.problem) return `Demonstration traffic has ended: ${demo.problem}`;
  return "This broker can make traffic of its own, so that there is something to look at: some messages a second through a few queues that begin with demo-.";
}

async function send(button, what, done) {
  button.disabled = true;
  try {
    await post(`/api/v1/demo/${what}`, {});
    toast(done);
  } catch (error) {
    toast(`Demonstration traffic: ${error.message}`, "bad");
  } finally {
    button.disabled = false;
  }
}
