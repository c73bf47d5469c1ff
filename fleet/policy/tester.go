package policy

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/operator"
)

// MaxTried is the maximum number of devices in one trial.
const MaxTried = 1000

// A Subject is the principal of a trial: a token or an operator by id, or any principal of a
// kind, role and name.
type Subject struct {
	Token, Operator uuid.UUID
	Kind            fleet.PrincipalKind
	Role            fleet.Role
	Name            string
}

// A Trial is a hypothetical call to one device or to the devices of a query.
type Trial struct {
	Subject   Subject
	Device    fleet.DeviceID
	Query     string // if Device is empty; "" means every device in service
	Tool      string
	Arguments json.RawMessage
}

// A TrialResult is the predicted outcome of the calls. A trial counts, records and sends
// nothing.
type TrialResult struct {
	Version   int64 // of the policy
	Principal fleet.Principal
	Matched   int // devices of the query; those beyond [MaxTried] were not tried
	Devices   []call.Preview
}

// A Tester tries calls on behalf of other principals.
type Tester struct {
	Policy    *Service
	Calls     *call.Service
	Devices   call.FanOutDevices
	Operators *operator.Service
}

// Test tries calls. by sees only the devices that ctx shows; for those that the subject does
// not see, the result states that.
func (t *Tester) Test(ctx context.Context, by fleet.Principal, trial Trial) (TrialResult, error) {
	if err := by.May(fleet.RoleViewer, "read_policies"); err != nil {
		return TrialResult{}, err
	}
	subject, err := t.subject(ctx, trial.Subject)
	if err != nil {
		return TrialResult{}, err
	}
	result := TrialResult{Version: t.Policy.Table().Version, Principal: subject, Matched: 1}
	ids := []fleet.DeviceID{trial.Device}
	if trial.Device == "" {
		q, err := fleet.ParseQuery(trial.Query)
		if err != nil {
			return TrialResult{}, err
		}
		if ids, err = t.Devices.DeviceIDs(ctx, q); err != nil {
			return TrialResult{}, err
		}
		result.Matched = len(ids)
	}
	previews, err := t.Calls.Preview(ctx, call.Request{Actor: subject, Tool: trial.Tool,
		Arguments: trial.Arguments}, ids[:min(len(ids), MaxTried)])
	if err != nil {
		return TrialResult{}, err
	}
	for _, p := range previews {
		if by.Sees(p.Device) {
			result.Devices = append(result.Devices, p)
		}
	}
	if trial.Device != "" && len(result.Devices) == 0 {
		return TrialResult{}, fleet.Refuse(fleet.ErrNotFound, "unknown_device.id", "id", trial.Device)
	}
	return result, nil
}

func (t *Tester) subject(ctx context.Context, s Subject) (fleet.Principal, error) {
	switch {
	case s.Token != uuid.Nil:
		tokens, err := t.Operators.Tokens(ctx)
		if err != nil {
			return fleet.Principal{}, err
		}
		for _, token := range tokens {
			if token.ID == s.Token {
				return token.Principal(), nil
			}
		}
		return fleet.Principal{}, fleet.Refuse(fleet.ErrInvalid, "unknown_caller.id", "id", s.Token).At("principal")
	case s.Operator != uuid.Nil:
		operators, err := t.Operators.Operators(ctx)
		if err != nil {
			return fleet.Principal{}, err
		}
		for _, operator := range operators {
			if operator.ID == s.Operator {
				return operator.Principal(), nil
			}
		}
		return fleet.Principal{}, fleet.Refuse(fleet.ErrInvalid, "unknown_caller.id", "id", s.Operator).At("principal")
	}
	kind := []fleet.PrincipalKind{s.Kind}
	if _, err := choose("principal.kind", kind, fleet.PrincipalKinds); err != nil {
		return fleet.Principal{}, err
	}
	if _, err := choose("principal.role", []fleet.Role{s.Role}, roles); err != nil {
		return fleet.Principal{}, err
	}
	name, err := fleet.CleanLine("principal.name", s.Name, fleet.MaxNameLength)
	return fleet.Principal{Kind: s.Kind, Name: name, Role: s.Role}, err
}

// An Outcome is the predicted outcome of a call.
type Outcome string

const (
	OutcomeSent    Outcome = "sent"
	OutcomeWaits   Outcome = "pending_approval"
	OutcomeRefused Outcome = "refused" // by the policy or another part of the gate
	OutcomeOffline Outcome = "offline" // allowed, but the device is not connected
)

// OutcomeOf returns the outcome that a preview predicts.
func OutcomeOf(p call.Preview) Outcome {
	switch {
	case len(p.Refusals) > 0:
		return OutcomeRefused
	case p.Verdict.Decision == call.DecisionRequireApproval:
		return OutcomeWaits
	case p.Wire != nil && !p.Wire.Connected:
		return OutcomeOffline
	}
	return OutcomeSent
}
