package policy

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/operator"
)

// MaxTried bounds the devices that one trial asks about.
const MaxTried = 1000

// A Subject says who a trial is about: a token or an operator by its id, or
// whoever has the kind, role and name.
type Subject struct {
	Token, Operator uuid.UUID
	Kind            fleet.PrincipalKind
	Role            fleet.Role
	Name            string
}

// A Trial asks what a call would come to, for one device or those of a query.
type Trial struct {
	Subject   Subject
	Device    fleet.DeviceID
	Query     string // without Device; "" is every device in service
	Tool      string
	Arguments json.RawMessage
}

// A TrialResult says what would become of the calls. Nothing was counted,
// recorded or sent.
type TrialResult struct {
	Version   int64 // of the policy
	Principal fleet.Principal
	Matched   int // devices of the query; of those beyond [MaxTried] nothing was asked
	Devices   []call.Preview
}

// A Tester tries calls on behalf of others.
type Tester struct {
	Policy    *Service
	Calls     *call.Service
	Devices   call.FanOutDevices
	Operators *operator.Service
}

// Test tries calls. by sees only the devices that ctx shows; of those that the
// subject does not see, the result says so.
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

// An Outcome is what a call would come to.
type Outcome string

const (
	OutcomeSent    Outcome = "sent"
	OutcomeWaits   Outcome = "pending_approval"
	OutcomeRefused Outcome = "refused" // by the policy or the rest of the gate
	OutcomeOffline Outcome = "offline" // allowed, and the device is not connected
)

// OutcomeOf is what the call of a preview would come to.
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
