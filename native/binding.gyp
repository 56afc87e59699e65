# Two parts: the data path as a static library without exceptions, and the Node-API addon on top of it.
# Sources are listed by find, so that a new file needs no entry here. Built by tools/setup/build-native.sh.
# NVMEOF_SANITIZE=address gives the build that `npm run test:addon-asan` uses.
{
  'variables': {
    'sanitize': '<!(echo "${NVMEOF_SANITIZE:-}")',
    'warnings': ['-Wall', '-Wextra', '-Wconversion', '-Wshadow', '-Werror'],
  },
  'target_defaults': {
    'include_dirs': ['.'],
    # node-gyp's own defaults: an older standard, -O3, a warning switched off. Its -fno-exceptions and
    # -fno-rtti stay for the data path; the addon may use exceptions.
    'cflags!': ['-O3', '-Wno-unused-parameter'],
    'cflags_cc!': ['-std=gnu++17', '-std=gnu++1y', '-std=gnu++20'],
    'cflags': ['-g', '-pthread', '-fvisibility=hidden'],
    'cflags_cc': ['-std=c++20', '<@(warnings)'],
    'configurations': {
      'Release': {'cflags!': ['-O3'], 'cflags': ['-O2']},
    },
    'conditions': [
      ['sanitize=="address"', {
        'cflags': ['-fsanitize=address,undefined', '-fno-omit-frame-pointer'],
        'ldflags': ['-fsanitize=address,undefined'],
      }, {
        # Calls between files are inlined: 2 to 9 % more 4 KiB reads (docs/performance.md).
        'cflags': ['-flto=auto'],
        'ldflags': ['-flto=auto', '-O2', '-Werror=odr', '-Werror=lto-type-mismatch'],
      }],
    ],
  },
  'targets': [
    {
      'target_name': 'nvmeof_core',
      'type': 'static_library',
      'sources': ["<!@(find reactor rdma block nvmf attach -name '*.cc' | LC_ALL=C sort)"],
    },
    {
      'target_name': 'nvmeof',
      'dependencies': ['nvmeof_core'],
      'sources': ["<!@(find addon -name '*.cc' | LC_ALL=C sort)"],
      'defines': ['NAPI_VERSION=8', 'NODE_ADDON_API_CPP_EXCEPTIONS'],
      'cflags_cc!': ['-fno-exceptions'],
      'cflags_cc': [
        # A system header: its own warnings are not ours. Absolute, because cflags are not rebased.
        "-isystem <!(node -p \"require('path').dirname(require.resolve('node-addon-api/package.json'))\")",
      ],
      'libraries': ['-lisal', '-luring'],
    },
  ],
}
