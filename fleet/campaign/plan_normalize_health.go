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
		return fleet.Refuse(fleet.ErrInvalid, "too_many_tools", "n", len(p.ForbidRemoved),
			"max", maxPlanForbidden).At("forbid_removed")
	}
	for i, name := range p.ForbidRemoved {
		if err := checkToolName(fmt.Sprintf("forbid_removed[%d]", i), name); err != nil {
			return err
		}
	}
	if len(p.HealthChecks) > maxHealthChecks {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_checks", "n", len(p.HealthChecks),
			"max", maxHealthChecks).At("health_checks")
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
		return fleet.Refuse(fleet.ErrInvalid, "invalid_tool.name", "field", field, "limit", maxToolName).At(field)
	}
	return nil
}

func (c *HealthCheck) normalize(field string) error {
	if err := checkToolName(field+".tool", c.Tool); err != nil {
		return err
	}
	if fleet.EffectOf(c.Tool) != fleet.EffectNone {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_tool.leaves", "tool", c.Tool).At(field + ".tool")
	}
	if len(c.Arguments) > 0 {
		var object map[string]any
		if len(c.Arguments) > maxCheckArgs || json.Unmarshal(c.Arguments, &object) != nil || object == nil {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_arguments.check", "field", field,
				"limit", maxCheckArgs).At(field + ".arguments")
		}
	}
	if err := (allowed{field + ".retries", 0, maxCheckRetries, 0}).check(&c.Retries); err != nil {
		return err
	}
	if len(c.Assert) > maxAssertions {
		return fleet.Refuse(fleet.ErrInvalid, "too_many_assertions", "field", field, "n", len(c.Assert),
			"max", maxAssertions).At(field + ".assert")
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
		return fleet.Refuse(fleet.ErrInvalid, "invalid_op", "value", fleet.CleanText(string(a.Op), 40),
			"choices", AssertionOps).At(field + ".op")
	}
	if err := checkPath(field+".path", a.Path); err != nil {
		return err
	}
	if a.Op == "exists" || a.Op == "unchanged" {
		if len(a.Value) > 0 && string(a.Value) != "null" {
			return fleet.Refuse(fleet.ErrInvalid, "unexpected_value", "op", a.Op).At(field + ".value")
		}
		return nil
	}
	return a.validateValue(field + ".value")
}

func checkPath(field, path string) error {
	if path == "" || len(path) > maxPath {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_path.length", "field", field, "limit", maxPath).At(field)
	}
	if _, err := jp.ParseString(path); err != nil {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_path.syntax", "value", fleet.CleanText(path, 80),
			"detail", fleet.CleanText(err.Error(), 300)).At(field)
	}
	if strings.Count(path, "..") > maxDescents {
		return fleet.Refuse(fleet.ErrInvalid, "invalid_path.descents", "value", fleet.CleanText(path, 80),
			"limit", maxDescents).At(field)
	}
	return nil
}

func (a Assertion) validateValue(field string) error {
	var v any
	if len(a.Value) == 0 || len(a.Value) > maxAssertedValue || json.Unmarshal(a.Value, &v) != nil {
		return fleet.Refuse(fleet.ErrInvalid, "value_required", "op", a.Op, "limit", maxAssertedValue).At(field)
	}
	switch a.Op {
	case "matches":
		pattern, ok := v.(string)
		if _, err := regexp.Compile(pattern); err != nil || !ok {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_pattern", "value", fleet.CleanText(string(a.Value), 80)).At(field)
		}
	case "lt", "le", "gt", "ge":
		if _, ok := v.(float64); !ok {
			return fleet.Refuse(fleet.ErrInvalid, "invalid_value", "op", a.Op,
				"value", fleet.CleanText(string(a.Value), 80)).At(field)
		}
	}
	return nil
}
