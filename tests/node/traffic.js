// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Send requests at a constant rate, and log a JSON list per request: time, version in the answer,
// failure, detail. For a failed request, the detail contains the user agent (which is unique) and
// the milliseconds of each phase. For a successful request, the detail is null.
// The method is POST, because Go's HTTP client silently retries a GET when a persistent connection
// breaks. k6 itself retries no request.
import exec from "k6/execution";
import http from "k6/http";

export const options = {
  discardResponseBodies: false,
  noConnectionReuse: __ENV.CONNECTIONS === "new",
  scenarios: {
    traffic: {
      executor: "constant-arrival-rate",
      rate: Number(__ENV.RATE),
      duration: "2h",
      preAllocatedVUs: 20, // the number of persistent connections
      maxVUs: 2000,
    },
  },
};

const headers = JSON.parse(__ENV.HEADERS);

export default function () {
  const sent = Date.now();
  const agent = `k6-${__ENV.CONNECTIONS}-${exec.scenario.iterationInTest}`;
  const answer = http.post(__ENV.URL, null, {
    headers: { "User-Agent": agent, ...headers }, timeout: __ENV.TIMEOUT, redirects: 0,
  });
  const failure = answer.error || (answer.status === 200 ? "" : `status ${answer.status}`);
  const detail = failure ? [agent, answer.timings] : null;
  console.log(JSON.stringify([sent, answer.body || "", failure, detail]));
}
