package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
)

// toolSystemInfo returns what a boot poll reports (protocol 4.6).
const toolSystemInfo = "self.get_system_info"

// elfPattern finds the build. The text around it is not valid JSON if a nearby Wi-Fi network
// has a quote in its name (protocol 1.3).
var elfPattern = regexp.MustCompile(`"elf_sha256"\s*:\s*"([0-9a-f]{16,64})"`)

// versionPattern finds the version of the application, whose description contains no text from
// third parties.
var versionPattern = regexp.MustCompile(`"application"\s*:\s*\{[^{}]*"version"\s*:\s*"([^"\\]{1,64})"`)

// probe sends the device a ping, which a restarting device cannot answer, and queries the build
// that it runs. Silence is no evidence.
func (l *loop) probe(ctx context.Context, d *deployment) {
	e, id, device, attempt, epoch := l.e, d.ID, d.Device, d.Attempt, d.epoch
	ask, timeout := d.camp.question(), l.o.Timers.Probe
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		over, err := e.o.Link.Ping(ctx, device)
		if err != nil {
			return
		}
		o := campaign.Observation{At: e.now(), Kind: fleet.EvidenceProbe, Attempt: attempt, SameConnection: epoch != 0 &&
			over == epoch}
		if !o.SameConnection { // on the same connection the upgrade call occupies the line, and the reply suffices
			if o.ELF, err = e.askBuild(ctx, ask, device); errors.Is(err, errUnasked) {
				e.inbox.put(input{do: func(l *loop) { l.notProbed(d, attempt) }})
				return
			}
			o.At = e.now()
		}
		e.accept(Evidence{Deployment: id, Observation: o})
	}()
}

func (l *loop) notProbed(d *deployment, attempt int) {
	if l.byID[d.ID] == d && d.Attempt == attempt && d.State.Active() {
		l.askAgain(d, func(l *loop, d *deployment) { l.probe(l.life, d) })
	}
}

// question returns the call that queries the build of a device, without the device.
func (c *openCampaign) question() call.Request {
	return call.Request{Actor: c.actor(), Mandate: c.mandate(), Tool: toolSystemInfo}
}

// askBuild returns the build that the device reports, or "" if it reports none, and records it
// with the register. The error is [errAbsent] or [errUnasked].
func (e *Engine) askBuild(ctx context.Context, ask call.Request, device fleet.DeviceID) (string, error) {
	ask.Device = device
	call, err := e.o.Calls.Make(ctx, ask)
	switch {
	case err != nil:
		return "", e.unasked(device, err)
	case call.State == fleet.CallOffline:
		return "", errAbsent
	case call.State != fleet.CallSucceeded:
		return "", nil
	}
	text := answerText(call.Result)
	match := elfPattern.FindStringSubmatch(text)
	if match == nil {
		return "", nil
	}
	if version := versionPattern.FindStringSubmatch(text); version != nil && e.o.Register != nil {
		e.o.Register.Runs(device, match[1], version[1])
	}
	return match[1], nil
}

// answerText returns the first text of a tool's result.
func answerText(result json.RawMessage) string {
	var r struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
	}
	if json.Unmarshal(result, &r) != nil {
		return ""
	}
	for _, c := range r.Content {
		if c.Type == "text" {
			return c.Text
		}
	}
	return ""
}
