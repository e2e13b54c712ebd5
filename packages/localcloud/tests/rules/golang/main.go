// The evaluator of the tests of alerts: Prometheus' own parser, storage, query engine and alerting rules behind JSON lines.
//
// Each line of standard input is one request, and each gets one line on standard output. Times are in the requests, in milliseconds since 1970;
// the program reads no clock. The protocol is described in ../evaluator.py.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/tsdb"
)

const (
	lookback     = 5 * time.Minute
	queryTimeout = time.Minute
	maxSamples   = 50_000_000
	blockLength  = 365 * 24 * time.Hour // one block: nothing is compacted, and no folder grows while the program runs
	maxLine      = 64 << 20
)

type request struct {
	Op     string            `json:"op"`
	Name   string            `json:"name"`
	Names  []string          `json:"names"`
	Expr   string            `json:"expr"`
	ForS   float64           `json:"forS"`
	AtMs   int64             `json:"atMs"`
	Labels map[string]string `json:"labels"`
	Text   string            `json:"text"`
	Up     *bool             `json:"up"`
}

type alert struct {
	Rule       string            `json:"rule"`
	State      string            `json:"state"`
	Labels     map[string]string `json:"labels"`
	Value      string            `json:"value"`
	ActiveAtMs int64             `json:"activeAtMs"`
}

type evaluator struct {
	db      *tsdb.DB
	engine  *promql.Engine
	parser  parser.Parser
	rules   map[string]*rules.AlertingRule
	context context.Context
}

func main() {
	folder, err := os.MkdirTemp("", "localcloud-rules-")
	if err == nil {
		err = run(folder)
		os.RemoveAll(folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "rules:", err)
		os.Exit(1)
	}
}

func run(folder string) error {
	evaluator, err := open(folder)
	if err != nil {
		return err
	}
	defer evaluator.db.Close()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, maxLine)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		answer, err := evaluator.answer(lines.Bytes())
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		if err := answers.Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func open(folder string) (*evaluator, error) {
	options := tsdb.DefaultOptions()
	options.WALSegmentSize = -1
	options.RetentionDuration = 0
	options.MinBlockDuration = int64(blockLength / time.Millisecond)
	options.MaxBlockDuration = options.MinBlockDuration
	options.NoLockfile = true
	db, err := tsdb.Open(folder, nil, nil, options, tsdb.NewDBStats())
	if err != nil {
		return nil, err
	}
	db.DisableCompactions()
	expressions := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples:           maxSamples,
		Timeout:              queryTimeout,
		LookbackDelta:        lookback,
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
		Parser:               expressions,
		NoStepSubqueryIntervalFn: func(int64) int64 {
			return int64(time.Minute / time.Millisecond)
		},
	})
	return &evaluator{db, engine, expressions, map[string]*rules.AlertingRule{}, context.Background()}, nil
}

func (e *evaluator) answer(line []byte) (any, error) {
	var asked request
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&asked); err != nil {
		return nil, fmt.Errorf("not a request: %w", err)
	}
	switch asked.Op {
	case "check":
		_, err := e.parser.ParseExpr(asked.Expr)
		return map[string]any{}, err
	case "rule":
		return e.set(asked)
	case "scrape":
		return e.scrape(asked)
	case "eval":
		return e.evaluate(asked)
	}
	return nil, fmt.Errorf("unknown operation %q", asked.Op)
}

// set adds a rule, or replaces the one of that name, whose pending and firing alerts are then forgotten.
func (e *evaluator) set(asked request) (any, error) {
	expression, err := e.parser.ParseExpr(asked.Expr)
	if err != nil {
		return nil, err
	}
	hold := time.Duration(asked.ForS * float64(time.Second))
	own := labels.FromMap(asked.Labels)
	empty := labels.EmptyLabels()
	e.rules[asked.Name] = rules.NewAlertingRule(asked.Name, expression, hold, 0, own, empty, empty, "", true, nil)
	return map[string]any{}, nil
}

// scrape stores the samples of an exposition at one time, with the target's labels.
func (e *evaluator) scrape(asked request) (any, error) {
	appender := e.db.Appender(e.context)
	add := func(builder *labels.Builder, value float64) error {
		for name, given := range asked.Labels {
			builder.Set(name, given)
		}
		_, err := appender.Append(0, builder.Labels(), asked.AtMs, value)
		return err
	}
	err := each([]byte(asked.Text), func(series labels.Labels, value float64) error {
		return add(labels.NewBuilder(series), value)
	})
	if err == nil && asked.Up != nil {
		value := 0.0
		if *asked.Up {
			value = 1
		}
		err = add(labels.NewBuilder(labels.FromStrings(model.MetricNameLabel, "up")), value)
	}
	if err != nil {
		return nil, errors.Join(err, appender.Rollback())
	}
	return map[string]any{}, appender.Commit()
}

func each(text []byte, visit func(labels.Labels, float64) error) error {
	if len(text) == 0 {
		return nil
	}
	exposition, err := textparse.New(text, "text/plain", labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return err
	}
	for {
		entry, err := exposition.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var series labels.Labels
		exposition.Labels(&series)
		_, _, value := exposition.Series()
		if err := visit(series, value); err != nil {
			return err
		}
	}
}

// evaluate runs the named rules at one time, and answers their pending and firing alerts and the errors by rule.
func (e *evaluator) evaluate(asked request) (any, error) {
	query := rules.EngineQueryFunc(e.engine, e.db)
	found, problems := []alert{}, map[string]string{}
	for _, name := range asked.Names {
		rule, ok := e.rules[name]
		if !ok {
			problems[name] = "no such rule"
			continue
		}
		if _, err := rule.Eval(e.context, 0, time.UnixMilli(asked.AtMs), query, nil, 0); err != nil {
			problems[name] = err.Error()
			continue
		}
		for _, active := range rule.ActiveAlerts() {
			found = append(found, alert{
				Rule:       name,
				State:      active.State.String(),
				Labels:     active.Labels.Map(),
				Value:      fmt.Sprint(active.Value),
				ActiveAtMs: active.ActiveAt.UnixMilli(),
			})
		}
	}
	return map[string]any{"alerts": found, "errors": problems}, nil
}
