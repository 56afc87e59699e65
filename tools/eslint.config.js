/**
 * Lint of the TypeScript: strict typed rules, sizes, and the layers (docs/architecture.md): imports point one way,
 * tools → target | initiator → native/{index,runtime,shared-runtime}.ts, common, wire. tidy.ts does the same for C++.
 */
import { dirname } from 'node:path';
import tseslint from 'typescript-eslint';

const root = dirname(import.meta.dirname);

/** Imports that nothing outside test/ may have, and how the way down into native is cut. */
const upwards = (folder) => `^(\\.\\./)+${folder}/`;
const nativeInside = '^(\\.\\./)+native/(?!(index|runtime|shared-runtime)\\.ts$|common/|wire/)';
const packageSelf = '^nvmeof(/|$)';

function layer(message, ...regexes) {
  return {
    'no-restricted-imports': ['error', { patterns: regexes.map((regex) => ({ regex, message })) }],
  };
}

const addonOnly = {
  selector: 'Literal[value=/\\.node$/], TemplateElement[value.raw=/\\.node$/]',
  message: 'Only native/load-door.ts knows the addon: everybody else gets a Door.',
};

export default tseslint.config(
  {
    ignores: ['**/node_modules/', 'dist/', '**/build/', '**/build-test/', 'native/wire/generated/'],
  },
  {
    files: ['**/*.ts'],
    extends: [tseslint.configs.strictTypeChecked],
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: root },
    },
    linterOptions: { reportUnusedDisableDirectives: 'error' },
    rules: {
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/switch-exhaustiveness-check': 'error',
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true, allowBoolean: true },
      ],
      '@typescript-eslint/no-confusing-void-expression': ['error', { ignoreArrowShorthand: true }],
      'max-lines': ['error', { max: 500 }],
      'max-lines-per-function': ['error', { max: 70 }],
      'no-console': 'error',
      'no-restricted-exports': ['error', { restrictDefaultExports: { direct: true } }],
      'no-restricted-syntax': ['error', addonOnly],
      ...layer(
        'Nothing imports tests, and native imports nobody above it.',
        ...['test', 'tools', 'target', 'initiator'].map(upwards),
        packageSelf,
      ),
    },
  },
  {
    files: ['native/load-door.ts'],
    rules: { 'no-restricted-syntax': 'off' },
  },
  {
    files: ['native/wire/**/*.ts'],
    rules: layer('native/wire imports nothing outside itself.', '^\\.\\./', '^[^.n]', '^n(?!ode:)'),
  },
  {
    files: ['native/common/**/*.ts'],
    rules: layer('native/common imports native/wire alone.', '^\\.\\./(?!wire/)', packageSelf),
  },
  {
    files: ['target/**/*.ts'],
    rules: layer(
      'target imports native/{index,runtime,shared-runtime}.ts, common and wire; never initiator, tools or test.',
      ...['initiator', 'tools', 'test'].map(upwards),
      nativeInside,
      packageSelf,
    ),
  },
  {
    files: ['initiator/**/*.ts'],
    rules: layer(
      'initiator imports native/{index,runtime,shared-runtime}.ts, common and wire; never target, tools or test.',
      ...['target', 'tools', 'test'].map(upwards),
      nativeInside,
      packageSelf,
    ),
  },
  {
    files: ['tools/**/*.ts'],
    rules: {
      'no-console': 'off',
      ...layer(
        'tools import target, initiator, and of native what those import; never test.',
        upwards('test'),
        nativeInside,
        packageSelf,
      ),
    },
  },
  {
    files: ['test/**/*.ts'],
    rules: {
      'max-lines-per-function': 'off',
      'no-console': 'off',
      // chai's assertions read as properties.
      '@typescript-eslint/no-unused-expressions': 'off',
      'no-restricted-imports': 'off',
    },
  },
);
