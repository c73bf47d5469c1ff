package api

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/heavy"
	"fleetd/web/access"
)

// maxRule bounds a rule's body, which may list many addresses.
const maxRule = 2 << 20

func (a *api) registerEnrolment() {
	const path = "/enrolment/rules"
	register(a, operation{id: "list-enrolment-rules", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: path, role: fleet.RoleViewer,
		summary: "List the rules by which devices join",
		about:   "In order: the first rule that matches decides. In open mode no rule applies."}, a.listRules)
	register(a, operation{id: "create-enrolment-rule", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPost, path: path, role: fleet.RoleAdmin,
		created: true, body: maxRule, heavy: heavy.Upload,
		summary: "Add an enrolment rule", about: "At the end of the list."}, a.createRule)
	register(a, operation{id: "get-enrolment-rule", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodGet, path: path + "/{id}", role: fleet.RoleViewer,
		noun:    "rule",
		summary: "Get an enrolment rule with the addresses it lists"}, a.getRule)
	register(a, operation{id: "update-enrolment-rule", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodPatch, path: path + "/{id}",
		role: fleet.RoleAdmin, noun: "rule", body: maxRule, heavy: heavy.Upload,
		summary: "Change an enrolment rule", about: "Omitted fields stay as they are; position moves the rule."}, a.updateRule)
	register(a, operation{id: "delete-enrolment-rule", reach: access.Fleet, models: fleet.ModelsNever,
		method: http.MethodDelete, path: path + "/{id}",
		role: fleet.RoleAdmin, noun: "rule",
		summary: "Remove an enrolment rule", about: "Devices that the rule accepted stay."}, a.deleteRule)
	register(a, operation{id: "list-waiting-devices", reach: access.List, models: fleet.ModelsNever,
		method: http.MethodGet, path: "/enrolment/waiting",
		role:    fleet.RoleViewer,
		summary: "List devices that ask to join",
		about: "With the rule that would decide on each at its next request, " +
			"and the networks of which requests were not listed."}, a.listWaiting)
}

// ruleView is the contract's rule.
type ruleView struct {
	ID           uuid.UUID            `json:"id" format:"uuid"`
	Position     int                  `json:"position" doc:"Place in the list, from 0"`
	Name         string               `json:"name"`
	Enabled      bool                 `json:"enabled"`
	Action       enrolment.RuleAction `json:"action" enum:"accept,refuse"`
	Boards       []string             `json:"boards" nullable:"false"`
	Networks     []string             `json:"networks" nullable:"false"`
	Devices      []fleet.DeviceID     `json:"devices,omitempty" doc:"The MAC addresses it lists; omitted in lists of rules"`
	DevicesCount int                  `json:"devices_count"`
	From         *time.Time           `json:"from"`
	Until        *time.Time           `json:"until"`
	MaxDevices   int                  `json:"max_devices" doc:"0: any number"`
	Tags         []string             `json:"tags" nullable:"false" doc:"Set on devices that the rule accepts"`
	Transport    fleet.Transport      `json:"transport" enum:",mqtt,ws" doc:"Transport of devices that the rule accepts; empty: mqtt"`
	Accepted     int                  `json:"accepted" doc:"Devices it has accepted"`
	Refused      int                  `json:"refused" doc:"Polls it has refused since fleetd started"`
	CreatedBy    string               `json:"created_by"`
	CreatedAt    time.Time            `json:"created_at"`
	UpdatedAt    time.Time            `json:"updated_at"`
}

func viewRule(r enrolment.RuleRow, place int) ruleView {
	v := ruleView{ID: r.ID, Position: place, Name: r.Name, Enabled: r.Enabled, Action: r.Action, Boards: orEmpty(r.Boards),
		Networks: []string{},
		Devices:  r.Devices, DevicesCount: len(r.Devices), From: utcOrNil(r.From), Until: utcOrNil(r.Until),
		MaxDevices: r.MaxDevices,
		Tags:       orEmpty(r.Tags), Transport: r.Transport, Accepted: r.Accepted, Refused: r.Refused, CreatedBy: r.CreatedBy,
		CreatedAt: utc(r.CreatedAt),
		UpdatedAt: utc(r.UpdatedAt)}
	for _, p := range r.Networks {
		v.Networks = append(v.Networks, p.String())
	}
	return v
}

// rule returns one rule with its position among the others.
func (a *api) rule(r enrolment.RuleRow, err error) (*answer[ruleView], error) {
	if err != nil {
		return nil, err
	}
	place := 0
	for i, other := range a.Rules.Rules() {
		if other.ID == r.ID {
			place = i
		}
	}
	return answerWith(viewRule(r, place)), nil
}

func (a *api) listRules(context.Context, fleet.Principal, *struct{}) (*answer[list[ruleView]], error) {
	rules := a.Rules.Rules()
	l := list[ruleView]{Items: make([]ruleView, len(rules))}
	for i, r := range rules {
		l.Items[i] = viewRule(r, i)
		l.Items[i].Devices = nil
	}
	return answerWith(l), nil
}

func (a *api) getRule(_ context.Context, _ fleet.Principal, in *IDPath) (*answer[ruleView], error) {
	return a.rule(a.Rules.Rule(in.uuid()))
}

// RuleFields are the settable fields of a rule; nil leaves one unchanged.
type RuleFields struct {
	Name       *string               `json:"name,omitempty" maxLength:"120"`
	Enabled    *bool                 `json:"enabled,omitempty" doc:"Default for a new rule: true"`
	Action     *enrolment.RuleAction `json:"action,omitempty" enum:"accept,refuse"`
	Boards     *[]string             `json:"boards,omitempty" maxItems:"100" doc:"A * matches any ending" nullable:"false"`
	Networks   *[]string             `json:"networks,omitempty" maxItems:"200" doc:"Such as 10.1.0.0/16" nullable:"false"`
	Devices    *[]string             `json:"devices,omitempty" maxItems:"20000" doc:"MAC addresses" nullable:"false"`
	From       *time.Time            `json:"from,omitempty"`
	Until      *time.Time            `json:"until,omitempty"`
	MaxDevices *int                  `json:"max_devices,omitempty" minimum:"0" maximum:"1000000"`
	Tags       *[]string             `json:"tags,omitempty" maxItems:"32" nullable:"false"`
	Transport  *fleet.Transport      `json:"transport,omitempty" enum:",mqtt,ws" doc:"Transport of devices that the rule accepts; empty: mqtt"`
	NoFrom     bool                  `json:"clear_from,omitempty" doc:"No start"`
	NoUntil    bool                  `json:"clear_until,omitempty" doc:"No end"`
}

func (f RuleFields) apply(r *enrolment.Rule) error {
	set(&r.Name, f.Name)
	set(&r.Enabled, f.Enabled)
	set(&r.Action, f.Action)
	set(&r.Boards, f.Boards)
	set(&r.Tags, f.Tags)
	set(&r.Transport, f.Transport)
	set(&r.MaxDevices, f.MaxDevices)
	if f.From != nil || f.NoFrom {
		r.From = utcOrNil(f.From)
	}
	if f.Until != nil || f.NoUntil {
		r.Until = utcOrNil(f.Until)
	}
	if f.Networks != nil {
		r.Networks = []netip.Prefix{}
		for _, s := range *f.Networks {
			p, err := enrolment.ParseNetworks(s)
			if err != nil {
				return err
			}
			r.Networks = append(r.Networks, p...)
		}
	}
	if f.Devices != nil {
		r.Devices = make([]fleet.DeviceID, len(*f.Devices))
		for i, s := range *f.Devices {
			id, err := fleet.ParseDeviceID(s)
			if err != nil || id.MAC() == "" {
				return enrolment.InvalidListLine(i+1, s)
			}
			r.Devices[i] = id
		}
	}
	return nil
}

type createRuleInput struct{ Body RuleFields }

func (a *api) createRule(ctx context.Context, by fleet.Principal, in *createRuleInput) (*answer[ruleView], error) {
	r := enrolment.Rule{Enabled: true}
	if err := in.Body.apply(&r); err != nil {
		return nil, err
	}
	return a.rule(a.Rules.Create(ctx, by, r))
}

type updateRuleInput struct {
	IDPath
	Body struct {
		RuleFields
		Position *int `json:"position,omitempty" minimum:"0" doc:"New place in the list, from 0"`
	}
}

func (a *api) updateRule(ctx context.Context, by fleet.Principal, in *updateRuleInput) (*answer[ruleView], error) {
	id := in.uuid()
	r, err := a.Rules.Rule(id)
	if err == nil && in.Body.RuleFields != (RuleFields{}) {
		r, err = a.Rules.Update(ctx, by, id, in.Body.apply)
	}
	if err == nil && in.Body.Position != nil {
		r, err = a.Rules.Move(ctx, by, id, *in.Body.Position)
	}
	return a.rule(r, err)
}

func (a *api) deleteRule(ctx context.Context, by fleet.Principal, in *IDPath) (*empty, error) {
	return &empty{}, a.Rules.Delete(ctx, by, in.uuid())
}

// waitingView is the contract's waiting device.
type waitingView struct {
	DeviceID   fleet.DeviceID       `json:"device_id"`
	Board      string               `json:"board"`
	Version    string               `json:"version"`
	RemoteAddr string               `json:"remote_addr"`
	Again      bool                 `json:"again" doc:"It is enrolled, but asks with another Client-Id"`
	Since      *time.Time           `json:"since"`
	LastPoll   *time.Time           `json:"last_poll" doc:"Or its latest connection attempt, if why is not empty"`
	Why        enrolment.WaitReason `json:"why" enum:",connects,key_not_on_record,serial_not_proved" doc:"Empty for a device that shows its code. Other devices connect with credentials of this server but are not on record, and show no code"`
	Rule       *ruleMatchView       `json:"rule" doc:"The rule that decides at its next request; null: none"`
}

// TransformSchema marks rule as nullable.
func (waitingView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "rule")
}

type ruleMatchView struct {
	ID      uuid.UUID            `json:"id" format:"uuid"`
	Name    string               `json:"name"`
	Action  enrolment.RuleAction `json:"action" enum:"accept,refuse"`
	Enabled bool                 `json:"enabled" doc:"false: it would decide if it were enabled"`
}

type unlistedView struct {
	Code     string         `json:"code" enum:"network_over_quota,networks_over_quota" doc:"The second one counts all others"`
	Params   unlistedParams `json:"params"`
	Since    time.Time      `json:"since"`
	LastPoll time.Time      `json:"last_poll"`
}

type unlistedParams struct {
	Network string `json:"network" doc:"Empty for networks that are not named"`
	N       int    `json:"n" doc:"Requests that were not listed or lost their place"`
}

type waitingList struct {
	Items    []waitingView  `json:"items" nullable:"false"`
	Unlisted []unlistedView `json:"unlisted" nullable:"false" doc:"Of the last hour"`
}

func (a *api) listWaiting(ctx context.Context, by fleet.Principal, _ *struct{}) (*answer[waitingList], error) {
	waiting, err := a.Enrolment.WaitingInScope(ctx)
	if err != nil {
		return nil, err
	}
	matches := make(map[fleet.DeviceID]*ruleMatchView)
	for _, m := range a.Rules.Preview(waiting) {
		if by.FleetRole() == "" {
			break // the principal may not read the rules
		}
		matches[m.Device] = &ruleMatchView{m.Rule, m.Name, m.Action, m.Enabled}
	}
	l := waitingList{Items: make([]waitingView, len(waiting)), Unlisted: []unlistedView{}}
	for i, w := range waiting {
		l.Items[i] = waitingView{DeviceID: w.Device, Board: w.Board, Version: w.Version, RemoteAddr: w.RemoteAddr,
			Again: w.Again,
			Since: utcOrNil(&w.Since), LastPoll: utcOrNil(&w.LastPoll), Why: w.Why,
			Rule: matches[w.Device]}
	}
	for _, u := range a.Enrolment.Unlisted() {
		if by.FleetRole() == "" {
			break // the requests concern all devices
		}
		v := unlistedView{Code: "networks_over_quota", Params: unlistedParams{N: u.Requests}, Since: utc(u.Since),
			LastPoll: utc(u.Last)}
		if u.Network.IsValid() {
			v.Code, v.Params.Network = "network_over_quota", u.Network.String()
		}
		l.Unlisted = append(l.Unlisted, v)
	}
	return answerWith(l), nil
}
