package rollout

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/campaign"
)

// These end the checks of a device without a verdict.
var (
	errAbsent  = errors.New("the device is not connected")
	errUnasked = errors.New("the database does not take the call")
)

func noVerdict(err error) bool { return errors.Is(err, errAbsent) || errors.Is(err, errUnasked) }

// checkHealth calls the tools of health checks, repeating each as often as the check allows,
// and returns the answers by index. baseline has the answers from before the upgrade; with nil,
// checkHealth collects the baseline and compares nothing with earlier answers.
func (c checker) checkHealth(ctx context.Context, device fleet.DeviceID, baseline map[string]string) (
	map[string]string, error) {
	checks := c.campaign.Plan.HealthChecks
	answers := make(map[string]string, len(checks))
	for i, check := range checks {
		key := strconv.Itoa(i)
		text, err := c.tryCheck(ctx, device, check, baseline, baseline[key])
		if err != nil {
			return nil, ofTool(check.Tool, err)
		}
		answers[key] = text
	}
	return answers, nil
}

// ofTool adds the tool to the error of its check.
func ofTool(tool string, err error) error {
	if failed, ok := errors.AsType[*campaign.CheckError](err); ok {
		return &campaign.CheckError{Reason: fleet.Because(campaign.ReasonCheckOf, "tool", tool, "why", failed.Reason)}
	}
	return err
}

// callFailed returns the error of a health check whose call failed.
func callFailed(e *fleet.CallError) error {
	return &campaign.CheckError{Reason: fleet.Because(campaign.ReasonCheckTool, "error", e.Code,
		"detail", fleet.CleanText(e.Message, 400))}
}

func (c checker) tryCheck(ctx context.Context, device fleet.DeviceID, check campaign.HealthCheck,
	baseline map[string]string, before string) (text string, err error) {
	for try := 0; ; try++ {
		text, err = c.runCheck(ctx, device, check)
		if err == nil {
			asserts := check.Assert
			if baseline == nil {
				asserts = absolute(asserts)
			}
			err = campaign.CheckAssertions(asserts, text, before)
		}
		if err == nil || noVerdict(err) || try >= check.Retries {
			return text, err
		}
		select {
		case <-ctx.Done():
			return "", errAbsent
		case <-time.After(c.e.o.RetryPause):
		}
	}
}

// absolute omits the assertions that can only hold after the upgrade.
func absolute(all []campaign.Assertion) (out []campaign.Assertion) {
	for _, a := range all {
		if a.Op != "unchanged" {
			out = append(out, a)
		}
	}
	return out
}

func (c checker) runCheck(ctx context.Context, device fleet.DeviceID, check campaign.HealthCheck) (string, error) {
	call, err := c.call(ctx, call.Request{Device: device, Tool: check.Tool, Arguments: check.Arguments})
	if err != nil {
		return "", c.e.unasked(device, fmt.Errorf("health check with %s: %w", check.Tool, err))
	}
	switch call.State {
	case fleet.CallSucceeded:
		if call.Error != nil && len(check.Assert) > 0 { // the answer is not stored
			return "", callFailed(call.Error)
		}
		return answerText(call.Result), nil
	case fleet.CallOffline, fleet.CallUnknown, fleet.CallCanceled:
		return "", errAbsent
	}
	if call.Error == nil {
		return "", &campaign.CheckError{Reason: fleet.Because(campaign.ReasonCheckCallEnded, "state", string(call.State))}
	}
	if call.Error.Code == fleet.CodeBusy {
		return "", errAbsent
	}
	return "", callFailed(call.Error)
}
