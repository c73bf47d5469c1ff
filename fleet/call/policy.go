package call

import (
	"encoding/json"
	"time"

	"fleetd/fleet"
)

// A Policy judges calls that role, hold and tool allow. It has no side effects
// but those of counting, and answers within microseconds: every call waits for it.
type Policy interface {
	Judge(p *Proposal) Verdict
}

// A Proposal is a call as a policy sees it.
type Proposal struct {
	Principal fleet.Principal
	Device    *fleet.Device
	Offers    fleet.ToolSet
	Tool      fleet.Tool
	Arguments json.RawMessage // a JSON object; nil is {}
	At        time.Time
	// Preview is true while a person only asks what would happen: nothing is
	// counted against a rate or a budget.
	Preview bool
	// Again is true when a call is judged once more before it is sent: it was
	// counted, and stays within the limits that it was within.
	Again bool
}

// A Decision is what a policy decides about a call.
type Decision string

const (
	DecisionAllow           Decision = "allow"
	DecisionDeny            Decision = "deny"
	DecisionRequireApproval Decision = "require_approval"
)

// A Verdict is the decision of a policy, and where it comes from.
type Verdict struct {
	Decision Decision
	Rule     string // id of the rule that decided
	RuleName string
	Version  int64        // of the policy; an approval is good for one version
	Reason   fleet.Reason // of a denial: the code and parameters of the refusal
	// ApprovalTTL is how long a call waits for its approval. 0: [DefaultApprovalTTL]
	ApprovalTTL time.Duration
}
