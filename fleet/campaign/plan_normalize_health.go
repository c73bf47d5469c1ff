package campaign

import (
	"encoding/json"
	"fleetd/fleet"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ohler55/ojg/jp"
)

const (
	maxHealthChecks  = 10
	maxAssertions    = 20
	maxCheckRetries  = 10
	maxCheckArgs     = 8 << 10 // bytes
	maxPath          = 200
	maxAssertedValue = 1000
)

func (p *Plan) normalizeHealth() error {
	if err := (allowed{"min_heap_percent", 0, 100, 0}).check(&p.MinHeapPercent); err != nil {
		return err
	}
	if err := (allowed{"max_reconnects", 1, maxPlanFlaps, 3}).check(&p.MaxReconnects); err != nil {
		return err
	}
	if len(p.ForbidRemoved) > maxPlanForbidden {
		return planError("too_many_tools", "forbid_removed", "forbid_removed names %d tools, at most %d are taken",
			len(p.ForbidRemoved), maxPlanForbidden)
	}
	for i, name := range p.ForbidRemoved {
		if err := checkToolName(fmt.Sprintf("forbid_removed[%d]", i), name); err != nil {
			return err
		}
	}
	if len(p.HealthChecks) > maxHealthChecks {
		return planError("too_many_checks", "health_checks", "the plan has %d health checks, at most %d are taken",
			len(p.HealthChecks), maxHealthChecks)
	}
	for i := range p.HealthChecks {
		if err := p.HealthChecks[i].normalize(fmt.Sprintf("health_checks[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func checkToolName(field, name string) error {
	if name == "" || len(name) > maxToolName || fleet.CleanText(name, maxToolName) != name {
		return planError("invalid_tool", field, "%s is not the name of a tool: 1 to %d bytes on one line", field, maxToolName)
	}
	return nil
}

func (c *HealthCheck) normalize(field string) error {
	if err := checkToolName(field+".tool", c.Tool); err != nil {
		return err
	}
	if fleet.EffectOf(c.Tool) != fleet.EffectNone {
		return planError("invalid_tool", field+".tool", "%s takes the device away: that is no health check", c.Tool)
	}
	if len(c.Arguments) > 0 {
		var object map[string]any
		if len(c.Arguments) > maxCheckArgs || json.Unmarshal(c.Arguments, &object) != nil || object == nil {
			return planError("invalid_arguments", field+".arguments", "%s.arguments is not a JSON object of at most %d bytes",
				field, maxCheckArgs)
		}
	}
	if err := (allowed{field + ".retries", 0, maxCheckRetries, 0}).check(&c.Retries); err != nil {
		return err
	}
	if len(c.Assert) > maxAssertions {
		return planError("too_many_assertions", field+".assert", "%s has %d assertions, at most %d are taken", field,
			len(c.Assert), maxAssertions)
	}
	for i, a := range c.Assert {
		if err := a.validate(fmt.Sprintf("%s.assert[%d]", field, i)); err != nil {
			return err
		}
	}
	return nil
}

func (a Assertion) validate(field string) error {
	if !slices.Contains(AssertionOps, a.Op) {
		return planError("invalid_op", field+".op", "%.40q is not a comparison; write one of %v", a.Op, AssertionOps)
	}
	if err := checkPath(field+".path", a.Path); err != nil {
		return err
	}
	if a.Op == "exists" || a.Op == "unchanged" {
		if len(a.Value) > 0 && string(a.Value) != "null" {
			return planError("unexpected_value", field+".value", "%s compares with nothing; leave value out", a.Op)
		}
		return nil
	}
	return a.validateValue(field + ".value")
}

func checkPath(field, path string) error {
	if path == "" || len(path) > maxPath {
		return planError("invalid_path", field, "%s is a JSON path of 1 to %d bytes, such as $.battery.level", field, maxPath)
	}
	if _, err := jp.ParseString(path); err != nil {
		return planError("invalid_path", field, "%.80q is not a JSON path: %v", path, err)
	}
	if strings.Count(path, "..") > maxDescents {
		return planError("invalid_path", field, "%.80q looks into everything below (..) more than %d times", path,
			maxDescents)
	}
	return nil
}

func (a Assertion) validateValue(field string) error {
	var v any
	if len(a.Value) == 0 || len(a.Value) > maxAssertedValue || json.Unmarshal(a.Value, &v) != nil {
		return planError("value_required", field, "%s needs a JSON value of at most %d bytes to compare with", a.Op,
			maxAssertedValue)
	}
	switch a.Op {
	case "matches":
		pattern, ok := v.(string)
		if _, err := regexp.Compile(pattern); err != nil || !ok {
			return planError("invalid_pattern", field, "%.80s is not a regular expression in quotes", a.Value)
		}
	case "lt", "le", "gt", "ge":
		if _, ok := v.(float64); !ok {
			return planError("invalid_value", field, "%s compares with a number, not with %.80s", a.Op, a.Value)
		}
	}
	return nil
}
