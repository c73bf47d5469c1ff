package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/policy"
	"fleetd/web/access"
	"fleetd/web/i18n"
)

func (a *api) registerPolicies() {
	const path = "/policies"
	register(a, operation{id: "list-policies", method: http.MethodGet, path: path, role: fleet.RoleViewer,
		reach: access.Fleet, models: fleet.ModelsMay,
		summary: "List the rules that judge calls",
		about:   "In order: the first rule that applies decides. If none applies, the call is allowed."}, a.listPolicies)
	register(a, operation{id: "create-policy", method: http.MethodPost, path: path, role: fleet.RoleAdmin, created: true,
		reach: access.Fleet, models: fleet.ModelsNever,
		summary: "Add a rule to the policy", about: "At position, or at the end."}, a.createPolicy)
	register(a, operation{id: "update-policy", method: http.MethodPatch, path: path + "/{id}", role: fleet.RoleAdmin,
		reach: access.Fleet, models: fleet.ModelsNever, noun: "policy", summary: "Change a rule of the policy",
		about: "Omitted fields stay as they are; position moves the rule."}, a.updatePolicy)
	register(a, operation{id: "delete-policy", method: http.MethodDelete, path: path + "/{id}", role: fleet.RoleAdmin,
		reach: access.Fleet, models: fleet.ModelsNever, noun: "policy", summary: "Remove a rule of the policy"}, a.deletePolicy)
	register(a, operation{id: "test-policy", method: http.MethodPost, path: path + "/test", role: fleet.RoleViewer,
		reach: access.Fleet, models: fleet.ModelsMay,
		noun: "device", summary: "Test how the policy decides on a call",
		about: "For any caller, on one device or the devices of a query: the verdict, the rule behind it, other refusals, " +
			"and the bytes that would be sent. Nothing is counted, recorded or sent."}, a.testPolicy)
}

// PolicyView is the contract's rule of the policy.
type PolicyView struct {
	ID            uuid.UUID             `json:"id" format:"uuid"`
	Position      int                   `json:"position" doc:"Place in the list, from 0"`
	Name          string                `json:"name"`
	Enabled       bool                  `json:"enabled"`
	Fixed         bool                  `json:"fixed" doc:"Cannot be changed, moved, disabled or removed"`
	Kinds         []fleet.PrincipalKind `json:"kinds" nullable:"false" doc:"Of the caller; an empty list: any"`
	Roles         []fleet.Role          `json:"roles" nullable:"false" doc:"Role of the caller on the device"`
	Names         []string              `json:"names" nullable:"false" doc:"Patterns of the caller's name"`
	Tools         []string              `json:"tools" nullable:"false" doc:"Patterns of the tool's name"`
	Audience      string                `json:"audience" enum:",model,user" doc:"Of the tool; empty: any"`
	Effects       []fleet.ToolEffect    `json:"effects" nullable:"false" doc:"Effect of the tool on the device's connection"`
	Devices       string                `json:"devices" doc:"A query; empty: any device"`
	Arguments     json.RawMessage       `json:"arguments" doc:"JSON schema that the arguments must match; null: any"`
	Window        *WindowView           `json:"window" doc:"When the rule applies; null: always"`
	Decision      call.Decision         `json:"decision" enum:"allow,deny,require_approval"`
	Note          string                `json:"note" doc:"Reason, for people"`
	ApprovalTTLMs int64                 `json:"approval_ttl_ms" doc:"How long a call waits for its approval; 0: the default"`
	RatePerMinute int                   `json:"rate_per_minute" doc:"Maximum calls per caller and tool; 0: no limit"`
	DailyBudget   int                   `json:"daily_budget" doc:"Maximum calls per caller and tool in a UTC day; 0: no limit"`
	UpdatedBy     string                `json:"updated_by" doc:"Empty for a built-in rule"`
	CreatedAt     time.Time             `json:"created_at"`
	UpdatedAt     time.Time             `json:"updated_at"`
	Warnings      []policyWarningView   `json:"warnings" nullable:"false"`
}

// TransformSchema marks window as nullable.
func (PolicyView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "window")
}

type policyWarningView struct {
	Code   string         `json:"code" example:"shadowed"`
	Params map[string]any `json:"params"`
	Detail string         `json:"detail"`
}

func viewPolicy(r policy.Rule, warnings []policy.Warning) PolicyView {
	v := PolicyView{ID: r.ID, Position: r.Position, Name: r.Name, Enabled: r.Enabled, Fixed: r.Fixed,
		Kinds: orEmpty(r.Kinds), Roles: orEmpty(r.Roles), Names: orEmpty(r.Names), Tools: orEmpty(r.Tools),
		Audience: string(r.Audience), Effects: orEmpty(r.Effects), Devices: r.Devices, Arguments: r.Arguments,
		Decision: r.Decision, Note: r.Note, ApprovalTTLMs: r.ApprovalTTL.Milliseconds(), RatePerMinute: r.RatePerMinute,
		DailyBudget: r.DailyBudget, UpdatedBy: r.UpdatedBy, CreatedAt: utc(r.CreatedAt), UpdatedAt: utc(r.UpdatedAt),
		Warnings: []policyWarningView{}}
	if r.Window != nil {
		v.Window = new(window(*r.Window))
	}
	for _, w := range warnings {
		if w.Rule == r.ID {
			v.Warnings = append(v.Warnings, policyWarningView{w.Reason.Code, paramsOf(w.Reason),
				i18n.Detail("policy.warn.", w.Reason)})
		}
	}
	return v
}

// PolicyList is the whole table.
type PolicyList struct {
	Items     []PolicyView  `json:"items" nullable:"false"`
	Next      *string       `json:"next_cursor" doc:"Always null: the list is complete"`
	Version   int64         `json:"version" doc:"Version of the policy; every change increments it"`
	Otherwise call.Decision `json:"otherwise" enum:"allow" doc:"Decision on calls to which no rule applies"`
}

func (a *api) listPolicies(ctx context.Context, by fleet.Principal, _ *struct{}) (*answer[PolicyList], error) {
	if err := by.May(fleet.RoleViewer, "read_policies"); err != nil {
		return nil, err
	}
	warnings, err := a.Policies.Warnings(ctx)
	if err != nil {
		return nil, err
	}
	t := a.Policies.Table()
	l := PolicyList{Items: make([]PolicyView, len(t.Rules)), Version: t.Version, Otherwise: call.DecisionAllow}
	for i, r := range t.Rules {
		l.Items[i] = viewPolicy(r, warnings)
	}
	return answerWith(l), nil
}

// policySchema is a JSON schema as a member of a body.
type policySchema json.RawMessage

func (policySchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true,
		Description: "JSON schema that the arguments satisfy, without references; {} is any"}
}

func (v *policySchema) UnmarshalJSON(data []byte) error {
	*v = append((*v)[:0], data...)
	return nil
}

// PolicyFields are the settable fields of a rule; nil leaves one unchanged.
type PolicyFields struct {
	Name          *string                `json:"name,omitempty" maxLength:"120"`
	Enabled       *bool                  `json:"enabled,omitempty" doc:"Default for a new rule: true"`
	Kinds         *[]fleet.PrincipalKind `json:"kinds,omitempty" maxItems:"6" nullable:"false" enum:"operator,program,model,voice,campaign,system"`
	Roles         *[]fleet.Role          `json:"roles,omitempty" maxItems:"3" nullable:"false" enum:"viewer,operator,admin"`
	Names         *[]string              `json:"names,omitempty" maxItems:"100" nullable:"false" doc:"A * at the end matches any ending"`
	Tools         *[]string              `json:"tools,omitempty" maxItems:"100" nullable:"false" doc:"A * at the end matches any ending"`
	Audience      *fleet.Audience        `json:"audience,omitempty" enum:",model,user"`
	Effects       *[]fleet.ToolEffect    `json:"effects,omitempty" maxItems:"2" nullable:"false" enum:"restarts,leaves_network"`
	Devices       *string                `json:"devices,omitempty" maxLength:"1024" example:"tag:lab"`
	Arguments     policySchema           `json:"arguments,omitempty"`
	Window        *WindowView            `json:"window,omitempty"`
	NoWindow      bool                   `json:"clear_window,omitempty" doc:"At any time"`
	Decision      *call.Decision         `json:"decision,omitempty" enum:"allow,deny,require_approval"`
	Note          *string                `json:"note,omitempty" maxLength:"500"`
	ApprovalTTLMs *int64                 `json:"approval_ttl_ms,omitempty" minimum:"0"`
	RatePerMinute *int                   `json:"rate_per_minute,omitempty" minimum:"0"`
	DailyBudget   *int                   `json:"daily_budget,omitempty" minimum:"0"`
	Position      *int                   `json:"position,omitempty" minimum:"0" doc:"Place in the list, from 0; fixed rules stay before all others"`
	Version       int64                  `json:"version,omitempty" minimum:"0" doc:"Version of the policy on which the change is based; nothing changes if it differs now. 0: any"`
}

func (f *PolicyFields) apply(r *policy.Rule) error {
	set(&r.Name, f.Name)
	set(&r.Enabled, f.Enabled)
	set(&r.Kinds, f.Kinds)
	set(&r.Roles, f.Roles)
	set(&r.Names, f.Names)
	set(&r.Tools, f.Tools)
	set(&r.Audience, f.Audience)
	set(&r.Effects, f.Effects)
	set(&r.Devices, f.Devices)
	set(&r.Decision, f.Decision)
	set(&r.Note, f.Note)
	set(&r.RatePerMinute, f.RatePerMinute)
	set(&r.DailyBudget, f.DailyBudget)
	if f.ApprovalTTLMs != nil {
		r.ApprovalTTL = fromMs(*f.ApprovalTTLMs)
	}
	if len(f.Arguments) > 0 {
		r.Arguments = json.RawMessage(f.Arguments)
	}
	if w := f.Window; w != nil {
		r.Window = &fleet.Window{Cron: w.Cron, Duration: fromMs(w.DurationMs), TimeZone: w.TimeZone}
	}
	if f.NoWindow {
		r.Window = nil
	}
	return nil
}

// changes reports whether the fields change more than the position of a rule.
func (f *PolicyFields) changes() bool {
	return f.Name != nil || f.Enabled != nil || f.Kinds != nil || f.Roles != nil || f.Names != nil || f.Tools != nil ||
		f.Audience != nil || f.Effects != nil || f.Devices != nil || len(f.Arguments) > 0 || f.Window != nil || f.NoWindow ||
		f.Decision != nil || f.Note != nil || f.ApprovalTTLMs != nil || f.RatePerMinute != nil || f.DailyBudget != nil
}

// policy returns a rule after a change, with its warnings.
func (a *api) policy(ctx context.Context, r policy.Rule, err error) (*answer[PolicyView], error) {
	if err != nil {
		return nil, err
	}
	warnings, err := a.Policies.Warnings(ctx)
	if err != nil {
		return nil, err
	}
	return answerWith(viewPolicy(r, warnings)), nil
}

type createPolicyInput struct{ Body PolicyFields }

func (a *api) createPolicy(ctx context.Context, by fleet.Principal, in *createPolicyInput) (*answer[PolicyView],
	error) {
	r, place := policy.Rule{Enabled: true}, -1
	set(&place, in.Body.Position)
	if err := in.Body.apply(&r); err != nil {
		return nil, err
	}
	r, err := a.Policies.Create(ctx, by, in.Body.Version, place, r)
	return a.policy(ctx, r, err)
}

type updatePolicyInput struct {
	IDPath
	Body PolicyFields
}

func (a *api) updatePolicy(ctx context.Context, by fleet.Principal, in *updatePolicyInput) (*answer[PolicyView],
	error) {
	id, version := in.uuid(), in.Body.Version
	var r policy.Rule
	var err error
	if in.Body.changes() || in.Body.Position == nil {
		r, err = a.Policies.Update(ctx, by, version, id, in.Body.apply)
		version = 0 // Update has checked it
	}
	if err == nil && in.Body.Position != nil {
		r, err = a.Policies.Move(ctx, by, version, id, *in.Body.Position)
	}
	return a.policy(ctx, r, err)
}

type deletePolicyInput struct {
	IDPath
	Version int64 `query:"version" minimum:"0" doc:"Version of the policy on which the removal is based; nothing is removed if it differs now. 0: any"`
}

func (a *api) deletePolicy(ctx context.Context, by fleet.Principal, in *deletePolicyInput) (*empty, error) {
	return &empty{}, a.Policies.Delete(ctx, by, in.Version, in.uuid())
}

// TrialSubject is the principal of a trial call.
type TrialSubject struct {
	Token    string              `json:"token_id,omitempty" format:"uuid" doc:"A token, or"`
	Operator string              `json:"operator_id,omitempty" format:"uuid" doc:"an operator, or"`
	Kind     fleet.PrincipalKind `json:"kind,omitempty" enum:"operator,program,model,voice,campaign,system" doc:"any caller with this kind, role and name"`
	Role     fleet.Role          `json:"role,omitempty" enum:"viewer,operator,admin" default:"operator"`
	Name     string              `json:"name,omitempty" maxLength:"120"`
}

type testPolicyInput struct {
	Body struct {
		Principal TrialSubject `json:"principal"`
		Device    string       `json:"device,omitempty" maxLength:"64" doc:"A device, or"`
		Query     string       `json:"q,omitempty" maxLength:"1024" doc:"the devices of a query; without either: all devices in service"`
		Tool      string       `json:"tool" minLength:"1" maxLength:"200" example:"self.reboot"`
		Arguments arguments    `json:"arguments,omitempty"`
		Limit     int          `json:"limit,omitempty" minimum:"1" maximum:"1000" default:"100" doc:"Maximum number of devices in the answer"`
	}
}

// TrialView is the predicted outcome of calls.
type TrialView struct {
	Version   int64              `json:"version" doc:"Of the policy"`
	Principal trialPrincipalView `json:"principal"`
	Matched   int                `json:"matched" doc:"Devices of the query"`
	Tried     int                `json:"tried" doc:"Of these, evaluated devices: at most 1,000"`
	Outcomes  map[string]int     `json:"outcomes" doc:"Evaluated devices, by outcome"`
	Items     []TrialDeviceView  `json:"items" nullable:"false" doc:"The first of them"`
}

type trialPrincipalView struct {
	Kind fleet.PrincipalKind `json:"kind"`
	Name string              `json:"name"`
	Role fleet.Role          `json:"role" doc:"The highest role on any device"`
}

// TrialDeviceView is the predicted outcome of one call.
type TrialDeviceView struct {
	DeviceID fleet.DeviceID  `json:"device_id"`
	Name     string          `json:"name"`
	Outcome  policy.Outcome  `json:"outcome" enum:"sent,pending_approval,refused,offline"`
	Verdict  string          `json:"verdict" enum:",allow,deny,require_approval" doc:"Of the policy; empty if the device does not have the tool"`
	Rule     *trialRuleView  `json:"rule" doc:"The rule behind the verdict; null: none applies"`
	Refusals []trialRefusal  `json:"refusals" nullable:"false" doc:"Refusals of the gate, including the policy's; the call would end with the first"`
	Bytes    *trialBytesView `json:"bytes" doc:"What would be sent; null: nothing"`
}

// TransformSchema marks the properties that may be null.
func (TrialDeviceView) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return orNull(s, "rule", "bytes")
}

type trialRuleView struct {
	ID   string `json:"id" format:"uuid"`
	Name string `json:"name"`
}

type trialRefusal struct {
	Code    string         `json:"code" example:"device_held"`
	Params  map[string]any `json:"params"`
	Message string         `json:"message"`
}

type trialBytesView struct {
	Request string `json:"request" doc:"The JSON-RPC request"`
	Message string `json:"message" doc:"The whole MQTT message: the request in its envelope"`
	ID      int32  `json:"id" doc:"The request's id"`
	IDIs    string `json:"id_is" enum:"next,placeholder" doc:"next: the id of the device's next call; placeholder: the device is not connected"`
	URLIs   string `json:"url_is" enum:",placeholder" doc:"placeholder: the argument url is a placeholder for a one-time address"`
}

func (a *api) testPolicy(ctx context.Context, by fleet.Principal, in *testPolicyInput) (*answer[TrialView], error) {
	body := &in.Body
	trial := policy.Trial{Subject: policy.Subject{Kind: body.Principal.Kind, Role: body.Principal.Role,
		Name: body.Principal.Name}, Query: body.Query, Tool: body.Tool, Arguments: json.RawMessage(body.Arguments)}
	if body.Principal.Token != "" {
		trial.Subject.Token = uuid.MustParse(body.Principal.Token) // its format is checked
	}
	if body.Principal.Operator != "" {
		trial.Subject.Operator = uuid.MustParse(body.Principal.Operator)
	}
	if body.Device != "" {
		id, err := fleet.ParseDeviceID(body.Device)
		if err != nil {
			return nil, err
		}
		trial.Device = id
	}
	result, err := a.Tester.Test(ctx, by, trial)
	if err != nil {
		return nil, err
	}
	v := TrialView{Version: result.Version, Matched: result.Matched, Tried: len(result.Devices),
		Principal: trialPrincipalView{result.Principal.Kind, result.Principal.Name, result.Principal.Role},
		Outcomes:  map[string]int{}, Items: []TrialDeviceView{}}
	for i, p := range result.Devices {
		v.Outcomes[string(policy.OutcomeOf(p))]++
		if i < body.Limit {
			v.Items = append(v.Items, viewTrial(p))
		}
	}
	return answerWith(v), nil
}

func viewTrial(p call.Preview) TrialDeviceView {
	v := TrialDeviceView{DeviceID: p.Device.ID, Name: p.Device.Name, Outcome: policy.OutcomeOf(p),
		Verdict: string(p.Verdict.Decision), Refusals: []trialRefusal{}}
	if p.Verdict.Rule != "" {
		v.Rule = &trialRuleView{p.Verdict.Rule, p.Verdict.RuleName}
	}
	for i := range p.Refusals {
		e := &p.Refusals[i]
		v.Refusals = append(v.Refusals, trialRefusal{e.Code, paramsOf(e.Reason()), i18n.CallErrorDetail(e)})
	}
	if w := p.Wire; w != nil {
		v.Bytes = &trialBytesView{Request: string(w.Request), Message: string(w.Message), ID: w.ID, IDIs: "placeholder"}
		if w.NextID {
			v.Bytes.IDIs = "next"
		}
		if w.OwnURL {
			v.Bytes.URLIs = "placeholder"
		}
	}
	return v
}
