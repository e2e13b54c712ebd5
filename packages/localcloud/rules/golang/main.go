// The alert evaluator of the local cloud: Prometheus' own parser, storage, query engine and alerting rules behind JSON lines.
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
	"sort"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"go.yaml.in/yaml/v3"
)

const (
	lookback     = 5 * time.Minute
	queryTimeout = time.Minute
	maxSamples   = 50_000_000
	blockLength  = 365 * 24 * time.Hour // one block: nothing is compacted, and no folder grows while the program runs
	maxLine      = 64 << 20
)

type request struct {
	Op       string            `json:"op"`
	Name     string            `json:"name"`
	Names    []string          `json:"names"`
	Expr     string            `json:"expr"`
	ForS     float64           `json:"forS"`
	AtMs     int64             `json:"atMs"`
	Labels   map[string]string `json:"labels"`
	Resource map[string]string `json:"resource"`
	Text     string            `json:"text"`
	Up       *bool             `json:"up"`
	Relabel  json.RawMessage   `json:"relabel"`
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
		return e.check(asked)
	case "rule":
		return e.set(asked)
	case "drop":
		delete(e.rules, asked.Name)
		return map[string]any{}, nil
	case "scrape":
		return e.scrape(asked)
	case "eval":
		return e.evaluate(asked)
	case "query":
		return e.query(asked)
	}
	return nil, fmt.Errorf("unknown operation %q", asked.Op)
}

// check parses an expression. It answers the metrics that the expression selects by name, and those of them without a sample.
func (e *evaluator) check(asked request) (any, error) {
	expression, err := e.parser.ParseExpr(asked.Expr)
	if err != nil {
		return nil, err
	}
	querier, err := e.db.Querier(0, int64(^uint64(0)>>1))
	if err != nil {
		return nil, err
	}
	defer querier.Close()
	stored, _, err := querier.LabelValues(e.context, model.MetricNameLabel, nil)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, name := range stored {
		known[name] = true
	}
	names, unknown := map[string]bool{}, map[string]bool{}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			for _, matcher := range selector.LabelMatchers {
				if matcher.Name == model.MetricNameLabel && matcher.Type == labels.MatchEqual {
					names[matcher.Value] = true
					if !known[matcher.Value] {
						unknown[matcher.Value] = true
					}
				}
			}
		}
		return nil
	})
	return map[string]any{"type": expression.Type(), "metrics": sorted(names), "unknown": sorted(unknown)}, nil
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

// scrape stores the samples of an exposition at one time: with the target's labels, then relabelled, then with the labels of the resource. The
// sample of `up`, if the request has one, is not relabelled.
func (e *evaluator) scrape(asked request) (any, error) {
	relabelling, err := relabelling(asked.Relabel)
	if err != nil {
		return nil, err
	}
	samples, stored := 0, 0
	appender := e.db.Appender(e.context)
	add := func(builder *labels.Builder, value float64) error {
		label(builder, asked.Resource)
		_, err := appender.Append(0, builder.Labels(), asked.AtMs, value)
		if errors.Is(err, storage.ErrOutOfOrderSample) || errors.Is(err, storage.ErrDuplicateSampleForTimestamp) {
			return nil
		}
		stored++
		return err
	}
	err = each([]byte(asked.Text), func(series labels.Labels, value float64) error {
		samples++
		builder := labels.NewBuilder(series)
		label(builder, asked.Labels)
		if !relabel.ProcessBuilder(builder, relabelling...) {
			return nil
		}
		return add(builder, value)
	})
	if err == nil && asked.Up != nil {
		builder := labels.NewBuilder(labels.FromStrings(model.MetricNameLabel, "up"))
		label(builder, asked.Labels)
		value := 0.0
		if *asked.Up {
			value = 1
		}
		err = add(builder, value)
	}
	if err != nil {
		return nil, errors.Join(err, appender.Rollback())
	}
	return map[string]int{"samples": samples, "stored": stored}, appender.Commit()
}

func relabelling(text json.RawMessage) ([]*relabel.Config, error) {
	found := []*relabel.Config{}
	if err := yaml.Unmarshal(text, &found); err != nil {
		return nil, err
	}
	for _, one := range found {
		one.NameValidationScheme = model.UTF8Validation
		if err := one.Validate(model.UTF8Validation); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// label sets labels. A sample's own label of that name gets the prefix `exported_`, as in Prometheus without honor_labels.
func label(builder *labels.Builder, given map[string]string) {
	for name, value := range given {
		if own := builder.Get(name); own != "" && own != value {
			builder.Set(model.ExportedLabelPrefix+name, own)
		}
		builder.Set(name, value)
	}
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

// query answers an instant query with the `data` of Prometheus' HTTP API.
func (e *evaluator) query(asked request) (any, error) {
	query, err := e.engine.NewInstantQuery(e.context, e.db, nil, asked.Expr, time.UnixMilli(asked.AtMs))
	if err != nil {
		return nil, err
	}
	defer query.Close()
	result := query.Exec(e.context)
	if result.Err != nil {
		return nil, result.Err
	}
	text, err := json.Marshal(result.Value)
	if err != nil {
		return nil, err
	}
	return map[string]any{"resultType": result.Value.Type(), "result": json.RawMessage(text)}, nil
}

func sorted(names map[string]bool) []string {
	found := []string{}
	for name := range names {
		found = append(found, name)
	}
	sort.Strings(found)
	return found
}
