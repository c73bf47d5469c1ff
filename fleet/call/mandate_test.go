package call_test

import (
	"context"
	"encoding/json"
	"testing"

	"fleetd/fleet"
	"fleetd/fleet/call"
)

// noModels denies the calls of models, and allows all others.
type noModels struct{}

func (noModels) Judge(p *call.Proposal) call.Verdict {
	if p.Principal.Kind.IsModel() {
		return call.Verdict{Decision: call.DecisionDeny, RuleName: "no models"}
	}
	return call.Verdict{Decision: call.DecisionAllow}
}

// A campaign calls on behalf of people: its health checks are judged as calls of their author,
// and all its calls need role operator of its askers.
func TestCallsOfCampaignsAreJudgedAsWhoAsked(t *testing.T) {
	scoped := func(kind fleet.PrincipalKind, filter string, tools ...string) fleet.Principal {
		scope, err := fleet.NewScope(filter, "", tools)
		if err != nil {
			t.Fatal(err)
		}
		return fleet.Principal{Kind: kind, ID: "t", Name: "token", Role: fleet.RoleOperator, Scope: scope}
	}
	person, elsewhere := scoped(fleet.KindProgram, ""), scoped(fleet.KindProgram, "tag:elsewhere")
	gets, model := scoped(fleet.KindProgram, "", "self.get_*"), scoped(fleet.KindModel, "")
	check := func(author fleet.Principal) *call.Mandate {
		return &call.Mandate{Askers: []fleet.Principal{author, author}, Author: &author}
	}
	const status = "self.get_device_status"
	tests := []struct {
		name    string
		tool    string
		mandate *call.Mandate
		code    string // of the refusal; "" if the device is called
	}{
		{"a person's check", "self.audio_speaker.set_volume", check(person), ""},
		{"--tools of the author", "self.audio_speaker.set_volume", check(gets), "tool_not_allowed"},
		{"what the author may call", status, check(gets), ""},
		{"a user-only tool for a model", fleet.ToolReboot, check(model), "user_only"},
		{"a policy about models", status, check(model), "policy_denied"},
		{"out of the author's scope", status, check(elsewhere), "out_of_scope"},
		{"its own call, by --tools of who asked", "self.audio_speaker.set_volume",
			&call.Mandate{Askers: []fleet.Principal{gets, gets}}, ""},
		{"its own call, out of the starter's scope", status,
			&call.Mandate{Askers: []fleet.Principal{person, elsewhere}}, "out_of_scope"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.Service = call.New(call.Options{Store: b.store, Targets: b.targets, Link: b.link, Watcher: b.seen,
				URLs: urls{}, Events: &fleet.Events{}, Policy: noModels{}})
			t.Cleanup(b.Shutdown)
			sent := 0
			b.link.Connect(unit, func(context.Context, string, json.RawMessage) (fleet.Answer, error) {
				sent++
				return fleet.Answer{Text: "true"}, nil
			})
			camp := fleet.Principal{Kind: fleet.KindCampaign, ID: "c", Name: "camp", Role: fleet.RoleOperator}
			r := call.Request{Actor: camp, Tool: tt.tool, Mandate: tt.mandate}
			if tt.tool == "self.audio_speaker.set_volume" {
				r.Arguments = json.RawMessage(`{"volume":13}`)
			}
			c := b.call(t, r)
			code := ""
			if c.Error != nil {
				code = c.Error.Code
			}
			if code != tt.code || (sent > 0) != (tt.code == "") {
				t.Errorf("ended %s, %q, sent %d times; want %q", c.State, code, sent, tt.code)
			}
			if len(c.Evidence) == 0 || c.Evidence[0].Kind != fleet.EvidenceOnBehalf || c.Actor.Kind != fleet.KindCampaign {
				t.Errorf("the record does not say on whose behalf it was made: %+v", c.Evidence)
			}
		})
	}
}
