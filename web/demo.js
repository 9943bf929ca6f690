// Panel of the demonstration traffic: state and buttons. Shown if the configuration of the serving node allows it. Used by
// `pages/overview.js`; the traffic itself is `bmqtwist/console/demonstration.py`.

import { post } from "./api.js";
import { h, replace, setText, show } from "./dom.js";
import { actionButton, toast } from "./dialog.js";
import { count, counted } from "./format.js";

/** Builds the panel in the box; show(demo) with the member of the cluster document. */
export function demoPanel(box) {
  const words = h("p", { class: "lead" });
  const start = actionButton("Start demonstration traffic", "operator", (button) =>
    send(button, "start", "Demonstration traffic started."),
  );
  const stop = actionButton("Stop demonstration traffic", "operator", (button) =>
    send(button, "stop", "Demonstration traffic stopped."),
  );
  replace(box, words, h("div", { class: "buttons" }, start, stop));
  return {
    show(demo) {
      show(box, Boolean(demo));
      if (!demo) return;
      show(start, !demo.running);
      show(stop, demo.running);
      setText(words, demo.running ? runningText(demo) : stoppedText(demo));
    },
  };
}

function runningText(demo) {
  if (!demo.queues.length) return "Demonstration traffic is starting: opening its queues.";
  return `Demonstration traffic runs on ${counted(demo.queues.length, "queue")}, started by ${demo.by}: ${count(
    demo.posted,
  )} posted, ${count(demo.confirmed)} confirmed, ${count(demo.refused)} refused.`;
}

function stoppedText(demo) {
  if (demo.problem) return `Demonstration traffic stopped: ${demo.problem}`;
  return "This broker can generate demonstration traffic: a few messages per second through queues whose names begin with demo-.";
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
