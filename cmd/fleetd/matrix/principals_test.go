package matrix

import (
	"fmt"
	"path"
	"strings"

	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// A principal acts with the rights of its token or operator.
type principal struct {
	kind   fleet.PrincipalKind
	role   fleet.Role
	scoped bool       // to tag:lab
	rest   fleet.Role // role outside of the scope
	tools  reachOfTools

	id, secret string
}

// reachOfTools selects the tools that a principal may call.
type reachOfTools string

const (
	allTools  reachOfTools = "all"
	someTools reachOfTools = "some"
	noTools   reachOfTools = "none"
)

var toolPatterns = map[reachOfTools][]string{allTools: {"*"}, someTools: {"self.get_*"}, noTools: {"self.nothing"}}

func (p *principal) String() string {
	scope := "everywhere"
	if p.scoped {
		scope = "in tag:lab"
	}
	if p.rest != "" {
		scope += ", elsewhere " + string(p.rest)
	}
	return fmt.Sprintf("%s %s %s, %s tools", p.kind, p.role, scope, p.tools)
}

// on returns the principal's role on the devices of a side; "" if it does not see
// them.
func (p *principal) on(s side) fleet.Role {
	if p.scoped && s == outside {
		return p.rest
	}
	return p.role
}

// onFleet returns its role on objects that belong to no device.
func (p *principal) onFleet() fleet.Role {
	if p.scoped {
		return p.rest
	}
	return p.role
}

func (p *principal) isModel() bool { return p.kind == fleet.KindModel || p.kind == fleet.KindVoice }

// userOnly are tools that language models never call.
var userOnly = map[string]bool{"self.get_system_info": true, "self.reboot": true, "self.upgrade_firmware": true,
	"self.screen.get_info": true, "self.screen.snapshot": true, "self.screen.preview_image": true,
	"self.assets.set_download_url": true}

// calls reports whether the principal may call the tool on the devices of a side.
func (p *principal) calls(tool string, s side) bool {
	return allows(p.on(s), fleet.RoleOperator) && p.mayCall(tool)
}

// mayCall reports whether its kind and its patterns allow the tool.
func (p *principal) mayCall(tool string) bool {
	if p.isModel() && userOnly[tool] {
		return false
	}
	for _, pattern := range toolPatterns[p.tools] {
		if ok, _ := path.Match(pattern, tool); ok {
			return true
		}
	}
	return false
}

// allows reports whether a role suffices for an operation that requires need.
func allows(role, need fleet.Role) bool {
	order := " viewer operator admin"
	return role != "" && strings.Index(order, string(role)) >= strings.Index(order, string(need))
}

// token creates the principal's token.
func (w *world) token(p *principal) *principal {
	w.t.Helper()
	ask := operator.TokenRequest{Name: w.name(inside), Kind: p.kind, Role: p.role, Tools: toolPatterns[p.tools]}
	if p.tools == allTools && !p.isModel() {
		ask.Tools = nil // a list, even of *, would be a limit
	}
	if p.scoped {
		ask.Scope = "tag:" + scopeTag
	}
	made, secret, err := w.srv.Operators.NewToken(w.t.Context(), w.people[1], ask)
	if err != nil {
		w.t.Fatal(err)
	}
	p.id, p.secret = made.ID.String(), secret
	w.actors[p.id] = p
	return p
}

// allTokens returns every combination that a token can have.
func allTokens() (all []*principal) {
	for _, kind := range []fleet.PrincipalKind{fleet.KindProgram, fleet.KindModel} {
		for _, role := range []fleet.Role{fleet.RoleViewer, fleet.RoleOperator, fleet.RoleAdmin} {
			for _, scoped := range []bool{false, true} {
				for _, tools := range []reachOfTools{allTools, someTools, noTools} {
					all = append(all, &principal{kind: kind, role: role, scoped: scoped, tools: tools})
				}
			}
		}
	}
	return all
}

// pairwise selects principals such that each pair of values of two properties
// that occurs in all also occurs in the selection. It selects all programs that
// may call every tool.
func pairwise(all []*principal) (kept []*principal) {
	pairs := func(p *principal) (list []string) {
		values := []string{string(p.kind), string(p.role), fmt.Sprint(p.scoped), string(p.rest) + " elsewhere", string(p.tools)}
		for i, a := range values {
			for _, b := range values[i+1:] {
				list = append(list, a+" "+b)
			}
		}
		return list
	}
	open := map[string]bool{}
	for _, p := range all {
		for _, pair := range pairs(p) {
			open[pair] = true
		}
	}
	keep := func(p *principal) {
		for _, pair := range pairs(p) {
			delete(open, pair)
		}
		kept = append(kept, p)
	}
	for _, p := range all {
		if p.kind == fleet.KindProgram && p.tools == allTools {
			keep(p) // operations closed to models are tried in each role and scope, too
		}
	}
	for len(open) > 0 {
		var best *principal
		most := 0
		for _, p := range all {
			n := 0
			for _, pair := range pairs(p) {
				if open[pair] {
					n++
				}
			}
			if n > most {
				best, most = p, n
			}
		}
		keep(best)
	}
	return kept
}
